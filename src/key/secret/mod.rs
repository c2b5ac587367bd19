//! Keys from secrets. Only the fingerprint of a secret is stored.

mod api_key;
mod authorization;
mod basic_user;
mod bearer;
mod cookie;
mod fingerprint;
mod pepper;

pub use self::api_key::ApiKey;
pub use self::basic_user::BasicUser;
pub use self::bearer::Bearer;
pub use self::cookie::Cookie;
pub use self::fingerprint::Fingerprint;
pub use self::pepper::{Fingerprinter, Pepper, ProcessPepper};
