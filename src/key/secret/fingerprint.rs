use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use super::pepper::{Pepper, ProcessPepper};
use crate::encode::{EncodeKey, KeyWriter};

/// A keyed hash of a secret: 128 bits of its HMAC-SHA-256 under a pepper.
///
/// Without the pepper, the fingerprint reveals neither the secret nor whether a guess is right. It may be logged, and
/// written to a store.
///
/// The type names the pepper. A `Fingerprint` has no meaning outside of this process, so it is not a key for a store
/// that several processes share. A `Fingerprint<Pepper>` is equal in all processes with the same
/// [`Pepper`](super::Pepper).
///
/// ```
/// use tower_ratelimit::key::Credential;
/// use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};
///
/// const KEY: Credential = Credential::api_key("x-api-key");
///
/// let fingerprint = KEY.key_of("31d4d96e407aad42");
/// assert!(!format!("{fingerprint} {fingerprint:?}").contains("31d4"));
///
/// // The limiter's decision on a key, by the secret.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// assert!(limiter.check(&fingerprint, AcquireOptions::default()).is_allowed());
/// ```
pub struct Fingerprint<P = ProcessPepper> {
    bytes: [u8; 16],
    pepper: PhantomData<fn() -> P>,
}

impl<P> Fingerprint<P> {
    pub(super) const fn new(bytes: [u8; 16]) -> Self {
        Self { bytes, pepper: PhantomData }
    }

    /// Returns the 128 bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.bytes
    }
}

/// Only with a shared pepper: fingerprints under a process's own pepper differ between processes.
impl EncodeKey for Fingerprint<Pepper> {
    fn encode(&self, key: &mut KeyWriter) {
        key.text_of(self);
    }
}

/// 32 hexadecimal digits.
impl<P> fmt::Display for Fingerprint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.bytes))
    }
}

impl<P> fmt::Debug for Fingerprint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

// Not derived: a derive would require the same trait of the pepper.

impl<P> Clone for Fingerprint<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Fingerprint<P> {}

impl<P> PartialEq for Fingerprint<P> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<P> Eq for Fingerprint<P> {}

impl<P> Hash for Fingerprint<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}
