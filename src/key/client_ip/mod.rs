//! The client's address behind proxies.
//!
//! - `extractor`: [`ClientIp`], the extractor
//! - `trust`: [`TrustedProxies`], which hops are believed
//! - `walk`: from the peer leftwards, as far as hops are trusted
//! - `field`, `forwarded`: the hops that a field tells of, from right to left
//! - `node`: the address that a hop is written as

mod extractor;
mod field;
mod forwarded;
mod node;
mod trust;
mod walk;

pub use self::extractor::ClientIp;
pub use self::trust::TrustedProxies;
