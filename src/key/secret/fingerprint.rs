use std::fmt;

/// What is kept of a secret: 128 bits of its HMAC-SHA-256 under a [`Pepper`](super::Pepper).
///
/// It tells secrets apart, and whoever sees it without the pepper can neither find the secret nor try guesses. It may be
/// logged, and written to a store.
///
/// ```
/// use tower_ratelimit::key::ApiKey;
/// use tower_ratelimit::{Ask, Gcra, Memory, Quota};
///
/// const KEY: ApiKey = ApiKey::from_static("x-api-key");
///
/// let fingerprint = KEY.key_of("31d4d96e407aad42");
/// assert!(!format!("{fingerprint} {fingerprint:?}").contains("31d4"));
///
/// // What the limiter knows of a key, by the secret.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// assert!(limiter.decide(&fingerprint, Ask::default()).is_allowed());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub(super) const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its 128 bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
