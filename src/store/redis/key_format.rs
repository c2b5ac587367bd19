use std::sync::Arc;

use arc_swap::ArcSwapOption;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::encode::KeyWriter;
use crate::error::Error;

/// How keys are named in Redis: `prefix:name:limit:kernel:key`, or with a tag `prefix:{tag}:name:limit:kernel:key`.
///
/// Those of several limits in a cluster are `prefix:{name}:limit:kernel:key`, unless they have a tag.
///
/// All but the prefix is escaped as [`KeyWriter`] does, so that no colon and no brace comes from a user. A key of more than
/// [`MAX_LEN`](Self::MAX_LEN) bytes is replaced by `#` and its SHA-256, or with a secret every key by `~` and its keyed
/// hash: neither sign is ever written for other keys.
pub(crate) struct Keys {
    prefix: String,
    /// What stands before the user's key, for each limit; after the tag, if there is one.
    heads: Vec<String>,
    /// Under which keys are hashed, if they are.
    secret: ArcSwapOption<Hmac<Sha256>>,
}

impl Keys {
    /// The longest user's key that is written as it is, in bytes.
    pub(crate) const MAX_LEN: usize = 128;

    /// `limits` are the limits' names and kernels.
    pub(crate) fn new<'a>(
        prefix: &str,
        name: &str,
        limits: impl IntoIterator<Item = (&'a str, &'a str)>,
        secret: Option<&[u8]>,
    ) -> Self {
        let head = |(limit, kernel)| format!(":{}:{}:{}:", part(name), part(limit), part(kernel));
        let heads = limits.into_iter().map(head).collect();
        Self {
            prefix: prefix.to_owned(),
            heads,
            secret: ArcSwapOption::new(secret.map(|secret| Arc::new(keyed(secret)))),
        }
    }

    /// With all keys in one slot: the name is their tag.
    pub(crate) fn in_one_slot(mut self, name: &str) -> Self {
        let name = part(name);
        for head in &mut self.heads {
            *head = head.replacen(&format!(":{name}:"), &format!(":{{{name}}}:"), 1);
        }
        self
    }

    /// Appends the key that `written` names in the limit with this index.
    pub(crate) fn append(&self, limit: usize, tag: Option<&str>, written: &str, to: &mut Vec<u8>) {
        to.extend_from_slice(self.prefix.as_bytes());
        if let Some(tag) = tag {
            to.extend_from_slice(b":{");
            self.append_users(tag, to);
            to.push(b'}');
        }
        to.extend_from_slice(self.heads[limit].as_bytes());
        self.append_users(written, to);
    }

    /// Appends what comes from a user.
    fn append_users(&self, written: &str, to: &mut Vec<u8>) {
        if let Some(keyed) = &*self.secret.load() {
            to.push(b'~');
            let hash = Hmac::clone(keyed).chain_update(written).finalize().into_bytes();
            push_hex(&hash[..16], to);
        } else if written.len() > Self::MAX_LEN {
            to.push(b'#');
            push_hex(&Sha256::digest(written.as_bytes()), to);
        } else {
            to.extend_from_slice(written.as_bytes());
        }
    }

    /// Replaces the secret: every key is another one from then on.
    pub(crate) fn rotate(&self, secret: &[u8]) -> Result<(), Error> {
        check_secret(secret)?;
        if self.secret.load().is_none() {
            return Err(Error::config(
                "this limiter's keys are not hashed: build it with `hash_keys` to have a secret",
            ));
        }
        self.secret.store(Some(Arc::new(keyed(secret))));
        Ok(())
    }
}

fn part(text: &str) -> String {
    let mut part = KeyWriter::new();
    part.bytes(text.as_bytes());
    part.as_str().to_owned()
}

pub(crate) fn check_secret(secret: &[u8]) -> Result<(), Error> {
    if secret.len() < 16 {
        return Err(Error::config(format!(
            "a secret for hashed keys must have at least 16 bytes, not {}: take them from a random source",
            secret.len()
        )));
    }
    Ok(())
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("a key of any length will do")
}

fn push_hex(bytes: &[u8], to: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        to.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}
