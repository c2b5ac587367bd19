use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::fingerprint::Fingerprint;
use crate::error::Error;

/// A secret under which fingerprints are made, so that nobody else can make them: one that several processes share.
///
/// Where limits are kept outside of the processes, keys must agree: give each of them the same pepper, from its
/// configuration. What is counted in one process only needs none: by default each draws [its own](ProcessPepper).
///
/// ```
/// use tower_ratelimit::key::{Bearer, Pepper};
///
/// # let from_configuration = [7; 32];
/// let key = Bearer::new().pepper(Pepper::new(&from_configuration)?);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone)]
pub struct Pepper(Arc<Hmac<Sha256>>);

impl Pepper {
    /// The shortest that can be given, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Random bytes that whoever is to agree has as well.
    ///
    /// # Errors
    ///
    /// If there are fewer than [`MIN_LEN`](Self::MIN_LEN) bytes.
    pub fn new(secret: &[u8]) -> Result<Self, Error> {
        if secret.len() < Self::MIN_LEN {
            return Err(Error::config(format!(
                "a pepper of {} bytes can be guessed: give it at least {} random ones",
                secret.len(),
                Self::MIN_LEN
            )));
        }
        Ok(Self(Arc::new(keyed(secret))))
    }

    /// What stands for a secret. `kind` says what it is a secret for: in two kinds, equal secrets have different
    /// fingerprints.
    #[must_use]
    pub fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        finish(Hmac::clone(&self.0), kind, secret)
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pepper").finish_non_exhaustive()
    }
}

/// The pepper that this process has drawn for itself: another process has another one, and after a restart so has this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessPepper;

impl ProcessPepper {
    /// As [`Pepper::fingerprint`], for this process alone.
    #[must_use]
    pub fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        finish(drawn().clone(), kind, secret)
    }
}

/// A [`Pepper`], or [`ProcessPepper`].
pub trait Fingerprinter: Sized + sealed::Sealed {
    /// What stands for a secret of some kind.
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self>;
}

impl Fingerprinter for Pepper {
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        self.fingerprint(kind, secret)
    }
}

impl Fingerprinter for ProcessPepper {
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        self.fingerprint(kind, secret)
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Pepper {}

    impl Sealed for super::ProcessPepper {}
}

fn finish<P>(mut mac: Hmac<Sha256>, kind: &str, secret: &[u8]) -> Fingerprint<P> {
    // With its length, so that where it ends and the secret begins is never in doubt.
    mac.update(&(kind.len() as u64).to_be_bytes());
    mac.update(kind.as_bytes());
    mac.update(secret);
    let mut bytes = [0; 16];
    for (byte, from) in bytes.iter_mut().zip(mac.finalize().into_bytes()) {
        *byte = from;
    }
    Fingerprint::new(bytes)
}

fn drawn() -> &'static Hmac<Sha256> {
    static DRAWN: OnceLock<Hmac<Sha256>> = OnceLock::new();
    DRAWN.get_or_init(|| {
        // The standard library seeds it with 128 bits from the operating system, as many as a fingerprint has. A secret
        // function's values are as secret.
        let random = RandomState::new();
        let mut secret = [0; 32];
        for (number, bytes) in secret.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&random.hash_one(number).to_be_bytes());
        }
        keyed(&secret)
    })
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    // One that is longer than a block counts by its digest (RFC 2104, section 2).
    let mut block = [0; 64];
    if let Some(start) = block.get_mut(..secret.len()) {
        start.copy_from_slice(secret);
    } else {
        block[..32].copy_from_slice(&Sha256::digest(secret));
    }
    Hmac::new(&block.into())
}
