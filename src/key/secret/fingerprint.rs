use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use super::pepper::{Pepper, ProcessPepper};
use crate::encode::{EncodeKey, KeyWriter};

/// What is kept of a secret: 128 bits of its HMAC-SHA-256 under a pepper.
///
/// It tells secrets apart, and whoever sees it without the pepper can neither find the secret nor try guesses. It may
/// be logged, and written to a store.
///
/// Its type says under whose pepper it was made. `Fingerprint` means nothing outside of this process, so it is no key
/// for a store that several processes share. `Fingerprint<Pepper>` is one: all that have the [`Pepper`](super::Pepper)
/// agree.
///
/// ```
/// use tower_ratelimit::key::ApiKey;
/// use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota};
///
/// const KEY: ApiKey = ApiKey::from_static("x-api-key");
///
/// let fingerprint = KEY.key_of("31d4d96e407aad42");
/// assert!(!format!("{fingerprint} {fingerprint:?}").contains("31d4"));
///
/// // What the limiter knows of a key, by the secret.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// assert!(limiter.decide(&fingerprint, AcquireOptions::default()).is_allowed());
/// ```
pub struct Fingerprint<P = ProcessPepper> {
    bytes: [u8; 16],
    pepper: PhantomData<fn() -> P>,
}

impl<P> Fingerprint<P> {
    pub(super) const fn new(bytes: [u8; 16]) -> Self {
        Self { bytes, pepper: PhantomData }
    }

    /// Its 128 bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.bytes
    }
}

/// Only one of a pepper that other processes have as well: under each process's own one, no two of them would mean the same.
impl EncodeKey for Fingerprint<Pepper> {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self.to_string().as_bytes());
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

// What a derive would ask of the pepper, none of these needs.

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
