//! Whose request it is.
//!
//! | Extractor | Key |
//! |---|---|
//! | [`PeerIp`] | the address of the socket's other end; IPv6 by /64 |
//! | [`Header`] | the value of one header field |
//! | [`Extension`] | a value that an outer layer put into the request's extensions |
//! | [`Global`] | one key for all requests |
//! | a closure `Fn(&Request) -> Option<Key>`, or `Result`, or [`Extracted`] | what it returns |
//! | a tuple of extractors | the tuple of their keys |

mod closure;
mod exempt;
mod extension;
mod global;
mod header;
mod ip;
mod seam;
mod text;
mod tuple;

pub use self::closure::IntoExtracted;
pub use self::exempt::{ExemptIf, Paths, PeerIn, Predicate, Preflight};
pub use self::extension::Extension;
pub use self::global::Global;
pub use self::header::Header;
pub use self::ip::PeerIp;
pub use self::seam::{ExtractKey, Extracted, Missing};
pub use self::text::KeyText;
pub use crate::encode::{EncodeKey, KeyWriter};
