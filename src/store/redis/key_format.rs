use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::encode::KeyWriter;
use crate::store::inner::{CallId, hash_if_long, hex};

/// The keys of a reservation id in Redis: of its record, and of the counts of the user's key.
pub(crate) struct ReservationKeys {
    pub(crate) record: Vec<u8>,
    pub(crate) counts: Vec<u8>,
}

/// The names of keys in Redis.
///
/// A key is `prefix:name:limit:script:key`, or with a hash tag `prefix:{tag}:name:limit:script:key`. Without a tag, the
/// keys of several limits in a cluster are `prefix:{name}:limit:script:key`. If the limit's sub-key has a name, `limit` is
/// `limit,sub-key`.
///
/// Every part but the prefix is escaped as [`KeyWriter`] does, so no colon or brace of a user's text reaches Redis: a
/// user could otherwise choose another limit's key, or a cluster slot. A key of more than [`MAX_KEY_LEN`](crate::encode::MAX_KEY_LEN)
/// bytes is replaced by `#` and its SHA-256, or with a secret every key by `~` and its keyed hash. Neither sign occurs
/// in an escaped key.
pub(crate) struct KeyFormat {
    prefix: String,
    /// For each limit the text before the user's key, after the hash tag.
    prefixes: Vec<String>,
    /// The secret of the keyed hash, if keys are hashed.
    secret: Option<Hmac<Sha256>>,
}

impl KeyFormat {
    /// `limits` are the names of the limits, of their sub-keys (or empty), and of their scripts. If the name is the hash
    /// tag, all keys share a cluster slot.
    pub(crate) fn new<'a>(
        prefix: &str,
        name: &str,
        limits: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
        secret: Option<&[u8]>,
        is_tag: bool,
    ) -> Self {
        let name = if is_tag { format!("{{{}}}", escape(name)) } else { escape(name) };
        // No escaped name contains a comma.
        let limit_prefix = |(limit, sub_key, script): (&str, &str, &str)| {
            let sub_key = if sub_key.is_empty() { String::new() } else { format!(",{}", escape(sub_key)) };
            format!(":{name}:{}{sub_key}:{}:", escape(limit), escape(script))
        };
        let prefixes = limits.into_iter().map(limit_prefix).collect();
        let hmac = |secret| Hmac::new_from_slice(secret).expect("HMAC accepts a key of any length");
        Self { prefix: prefix.to_owned(), prefixes, secret: secret.map(hmac) }
    }

    /// Appends the name of a key. `limit` is the index of the limit, `encode` writes the sub-key.
    pub(crate) fn append(
        &self,
        limit: usize,
        tag: Option<&str>,
        names: &mut KeyWriter,
        encode: impl FnOnce(&mut KeyWriter),
    ) {
        let prefix = &*self.prefixes[limit];
        match tag {
            None => names.start_key(&[&self.prefix, prefix]),
            Some(tag) => {
                let hash = self.hash(tag);
                names.start_key(&[&self.prefix, ":{", hash.as_deref().unwrap_or(tag), "}", prefix]);
            }
        }
        encode(names);
        if let Some(hash) = self.hash(names.as_str()) {
            names.replace_key(&hash);
        }
    }

    /// Returns the names of the keys of a reservation id on the concatenated keys of all limits.
    ///
    /// They have the cluster slot of the first limit's key: its hash tag, or the whole key as the tag.
    pub(crate) fn reservation_keys(&self, keys: &[u8], offsets: &[usize], call_id: CallId) -> ReservationKeys {
        let start = offsets.iter().copied().take_while(|end| *end == 0).count();
        let first = String::from_utf8_lossy(&keys[..offsets.get(start).copied().unwrap_or(0)]);
        let base = if first.contains('{') { first.into_owned() } else { format!("{}:{{{first}}}", self.prefix) };
        let of_key = Sha256::new().chain_update((keys.len() as u64).to_le_bytes()).chain_update(keys);
        let of_id = of_key.clone().chain_update(call_id.id.to_bytes());
        let name = |kind: &str, hash: Sha256| format!("{base}:{kind}{}", hex('~', &hash.finalize()[..16])).into_bytes();
        let [record, counts] = if call_id.is_hold() { ["id", "ids"] } else { ["request", "requests"] };
        ReservationKeys { record: name(record, of_id), counts: name(counts, of_key) }
    }

    /// Returns the replacement of a user's key, if it is hashed.
    fn hash(&self, key: &str) -> Option<String> {
        if let Some(secret) = &self.secret {
            let hash = Hmac::clone(secret).chain_update(key).finalize().into_bytes();
            Some(hex('~', &hash[..16]))
        } else {
            hash_if_long(key)
        }
    }
}

fn escape(text: &str) -> String {
    let mut writer = KeyWriter::new();
    writer.bytes(text.as_bytes());
    writer.as_str().to_owned()
}
