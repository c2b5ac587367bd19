use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::fingerprint::Fingerprint;
use crate::error::Error;

/// The secret key of fingerprints, shared by several processes.
///
/// If several processes share limits, give all of them the same pepper from their configuration. Limits in one
/// process need no pepper: the default is the process's own [`ProcessPepper`].
///
/// ```
/// use tower_ratelimit::key::{Credential, Pepper};
///
/// # let from_configuration = [7; 32];
/// let key = Credential::bearer().pepper(Pepper::new(&from_configuration)?);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone)]
pub struct Pepper(Arc<Hmac<Sha256>>);

impl Pepper {
    /// The length of the shortest allowed pepper, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Creates a pepper from random bytes, which are the same in all processes.
    ///
    /// # Errors
    ///
    /// If there are fewer than [`MIN_LEN`](Self::MIN_LEN) bytes.
    pub fn new(secret: &[u8]) -> Result<Self, Error> {
        if secret.len() < Self::MIN_LEN {
            return Err(Error::config(format!(
                "pepper too short: {} bytes can be guessed; use at least {} random bytes",
                secret.len(),
                Self::MIN_LEN
            )));
        }
        Ok(Self(Arc::new(hmac_key(secret))))
    }

    /// Returns the random pepper of this process.
    #[cfg(feature = "serde")]
    pub(crate) fn of_process() -> Self {
        Self(Arc::new(process_secret().clone()))
    }

    /// Returns the fingerprint of a secret. Equal secrets of different kinds have different fingerprints.
    pub fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        finalize(Hmac::clone(&self.0), kind, secret)
    }
}

impl_debug!(Pepper {});

/// The random pepper of this process, which changes with each restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct ProcessPepper;

/// A source of fingerprints: [`Pepper`] or [`ProcessPepper`].
pub trait Fingerprinter: sealed::Sealed + Sized + 'static {
    /// Returns the fingerprint of a secret: see [`Pepper::fingerprint`].
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self>;
}

impl Fingerprinter for Pepper {
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        self.fingerprint(kind, secret)
    }
}

impl Fingerprinter for ProcessPepper {
    fn fingerprint(&self, kind: &str, secret: &[u8]) -> Fingerprint<Self> {
        finalize(process_secret().clone(), kind, secret)
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Pepper {}

    impl Sealed for super::ProcessPepper {}
}

fn finalize<P>(mut mac: Hmac<Sha256>, kind: &str, secret: &[u8]) -> Fingerprint<P> {
    // The length separates the kind from the secret: without it, ("a", "bc") and ("ab", "c") would be equal.
    mac.update(&(kind.len() as u64).to_be_bytes());
    mac.update(kind.as_bytes());
    mac.update(secret);
    let mut bytes = [0; 16];
    for (byte, from) in bytes.iter_mut().zip(mac.finalize().into_bytes()) {
        *byte = from;
    }
    Fingerprint::new(bytes)
}

fn process_secret() -> &'static Hmac<Sha256> {
    static SECRET: OnceLock<Hmac<Sha256>> = OnceLock::new();
    SECRET.get_or_init(|| {
        // The operating system seeds `RandomState` with 128 random bits, the length of a fingerprint. SipHash is a
        // keyed pseudorandom function, so its values are as secret as its seed.
        let random = RandomState::new();
        let mut secret = [0; 32];
        for (number, bytes) in secret.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&random.hash_one(number).to_be_bytes());
        }
        hmac_key(&secret)
    })
}

fn hmac_key(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC accepts a key of any length")
}
