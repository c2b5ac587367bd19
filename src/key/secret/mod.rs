//! Keys from secrets. Only the fingerprint of a secret is stored.

mod authorization;
mod cookie;
mod credential;
mod fingerprint;
mod pepper;

pub use self::credential::Credential;
pub use self::fingerprint::Fingerprint;
pub use self::pepper::{Fingerprinter, Pepper, ProcessPepper};
