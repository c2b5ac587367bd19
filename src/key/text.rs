use std::fmt;
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::encode::{EncodeKey, KeyWriter};

/// A key from text of any length, stored without an allocation.
///
/// Up to [`MAX_LEN`](Self::MAX_LEN) bytes are stored as they are. A longer text is replaced by a SHA-256 digest, which
/// equals no text: a client cannot use another client's limit by sending the digest of its key.
///
/// The extractors [`Header`](super::Header), [`Host`](super::Host), [`Path`](super::Path) and
/// [`Method`](super::Method) return it. So it is also the key of operations on their limiters:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::key::{Header, KeyText};
/// use tower_ratelimit::{Gcra, Limiter, Memory, Quota, RateLimitLayer};
///
/// let limiter = Memory::<KeyText, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(Header::from_static("x-tenant"), limiter.clone());
///
/// // Denies the requests with `x-tenant: acme` for an hour.
/// let _ = limiter.block("default", &KeyText::from("acme"), Duration::from_secs(3600));
/// ```
#[derive(Clone, Copy)]
pub struct KeyText {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl KeyText {
    /// The length of the longest text that is stored as it is, in bytes.
    pub const MAX_LEN: usize = 63;

    /// Creates a key from any bytes.
    pub fn new(text: &[u8]) -> Self {
        match Self::verbatim(text) {
            // A text that begins like a digest is replaced, too: otherwise it could equal the digest of another text.
            Some(key) if text.first() != Some(&Self::DIGEST_LABEL[0]) => key,
            _ => Self::digest(text),
        }
    }

    /// The key of the empty text.
    #[cfg_attr(not(feature = "serde"), allow(dead_code, reason = "for the limits of routes"))]
    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::MAX_LEN], len: 0 };

    /// The start of a digest. No header value, URI or method contains the first byte.
    const DIGEST_LABEL: &[u8; 8] = b"\0sha256-";

    #[inline]
    fn verbatim(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { bytes, len: u8::try_from(text.len()).ok()? })
    }

    /// The label and 54 hexadecimal digits: 216 of the 256 bits.
    #[cold]
    fn digest(text: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut key = [0; Self::MAX_LEN];
        let (label, digits) = key.split_at_mut(Self::DIGEST_LABEL.len());
        label.copy_from_slice(Self::DIGEST_LABEL);
        for (pair, byte) in digits.chunks_exact_mut(2).zip(Sha256::digest(text)) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        Self { bytes: key, len: 62 }
    }

    /// Returns the stored bytes: the text or its digest.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for KeyText {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyText {}

impl Hash for KeyText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl EncodeKey for KeyText {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self.as_bytes());
    }
}

impl From<&str> for KeyText {
    fn from(text: &str) -> Self {
        Self::new(text.as_bytes())
    }
}

impl fmt::Display for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyText({self})")
    }
}
