//! Whose request it is.
//!
//! | Extractor | Key |
//! |---|---|
//! | [`PeerIp`] | the address of the socket's other end; IPv6 by /64 |
//! | [`ClientIp`] | the client's address behind [trusted proxies](TrustedProxies) |
//! | [`Bearer`], [`ApiKey`], [`Cookie`] | the [fingerprint](Fingerprint) of a token, an API key, a cookie |
//! | [`Header`] | the value of one header field |
//! | [`Host`], [`Method`], [`Path`] | what the request is for |
//! | `MatchedPath` | axum's route (feature `axum`) |
//! | [`Extension`] | a value that an outer layer put into the request's extensions, such as [`LookupLayer`] |
//! | [`Global`] | one key for all requests |
//! | a closure `Fn(&Request) -> Option<Key>`, or `Result`, or [`Extracted`] | what it returns |
//! | `one.or(another)` | [one or the other](Or): "the API key, else the client's address" |
//! | a tuple of extractors | the tuple of their keys: "the user and the route" |
//!
//! # Absent and unusable keys
//!
//! A request without a key is refused. An *absent* key can be replaced by another one ([`Or`]), and the layer can let
//! the request pass ([`WhenMissing::Exempt`](crate::WhenMissing::Exempt)). An *unusable* key is always refused, with
//! status 400: an application may accept the credential that the extractor cannot use. See [`Missing`].
//!
//! | Extractor | Absent | Unusable |
//! |---|---|---|
//! | [`Header`], [`ApiKey`] | the field is missing | the field is empty, or comes more than once |
//! | [`Bearer`] | no field `Authorization`, or another scheme (`Basic ...`) | the field is empty, is malformed (`Bearer` alone, a token without a scheme), or comes more than once |
//! | [`Cookie`] | no cookie of the name | the cookie is empty, is not UTF-8 when decoded, or comes more than once |
//! | [`Host`] | neither `:authority` (or an absolute URI) nor the field `Host` | one of the two is malformed, both differ, `Host` is empty or comes more than once |
//! | [`PeerIp`], [`ClientIp`] | the peer's address is missing (status 500) | with `trust_absent_peer`: the field holds no address |
//! | [`Extension`] | the extensions hold no such value (status 500) | never: the function of a [`LookupLayer`] returns the response |
//! | a closure | `None`, or [`Missing::from_request`] | `Err`, or [`Missing::unusable`] |
//! | `one.or(another)` | both keys are absent | the first key is unusable, or the first is absent and the second unusable |
//! | a tuple of extractors | one key is absent, none is unusable | one key is unusable |
//! | [`Method`], [`Path`], `MatchedPath`, [`Global`] | never | never |

mod address;
mod client_ip;
mod closure;
mod exempt;
mod extension;
mod global;
mod header;
mod host;
mod lookup;
#[cfg(feature = "axum")]
mod matched_path;
mod method;
mod missing;
mod or;
mod path;
mod seam;
mod secret;
mod text;
mod tuple;

pub use self::address::{FromExtensions, PeerAddress, PeerIp};
pub use self::client_ip::{ClientIp, TrustedProxies};
pub use self::closure::IntoExtracted;
pub use self::exempt::{ClientIn, ExemptIf, Paths, PeerIn, Predicate, Preflight};
pub use self::extension::Extension;
pub use self::global::Global;
pub use self::header::Header;
pub use self::host::Host;
pub use self::lookup::{Lookup, LookupFuture, LookupLayer};
#[cfg(feature = "axum")]
pub use self::matched_path::MatchedPath;
pub use self::method::Method;
pub use self::missing::Missing;
pub use self::or::{Either, Or};
pub use self::path::Path;
pub use self::seam::{ExtractKey, Extracted};
pub use self::secret::{ApiKey, Bearer, Cookie, Fingerprint, MakeFingerprint, OwnPepper, Pepper};
pub use self::text::KeyText;
pub use crate::encode::{EncodeKey, KeyWriter};
