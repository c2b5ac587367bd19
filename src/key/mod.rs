//! Key extractors.
//!
//! | Extractor | Key |
//! |---|---|
//! | [`PeerIp`] | the address of the connection's peer; IPv6 by /64 |
//! | [`ClientIp`] | the client's address behind [trusted proxies](TrustedProxies) |
//! | [`Credential`] | the [fingerprint](Fingerprint) of a bearer token, an API key, a cookie or a `Basic` user name |
//! | [`Header`] | the value of a header |
//! | [`Host`], [`Method`], [`Path`] | a part of the request line |
//! | `MatchedPath` | axum's route (feature `axum`) |
//! | [`FromExtension`] | a value that an outer layer, such as [`LookupLayer`], put into the request's extensions |
//! | [`Global`] | one key for all requests |
//! | a closure `Fn(&Request) -> Option<Key>`, or `Result`, or [`Extracted`] | the value that the closure returns |
//! | `first.or(second)` | [one of two keys](Or): the API key, otherwise the client's address |
//! | a tuple of extractors | the tuple of their keys: the user and the route |
//!
//! # Absent and unusable keys
//!
//! The layer rejects a request without a key. Another extractor can replace an *absent* key ([`Or`]), and the layer can
//! forward the request ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)). The layer always rejects an
//! *unusable* key with status 400, because an application may accept the credential that the extractor cannot use. See
//! [`MissingKey`].
//!
//! | Extractor | Absent | Unusable |
//! |---|---|---|
//! | [`Header`], [`Credential::api_key`] | the header is missing | the header is empty or repeated |
//! | [`Credential::bearer`] | no `Authorization` header, or another scheme (`Basic ...`) | the header is empty, malformed (`Bearer` alone, a token without a scheme) or repeated |
//! | [`Credential::basic_user`] | no `Authorization` header, or another scheme (`Bearer ...`) | the header is empty, malformed (no base64, no colon, no user name) or repeated |
//! | [`Credential::cookie`] | no cookie of the name | the cookie is empty, repeated, or not UTF-8 when decoded |
//! | [`Host`] | neither `:authority` (or an absolute URI) nor the `Host` header | one of the two is malformed, both differ, `Host` is empty or repeated |
//! | [`PeerIp`], [`ClientIp`] | the peer's address is missing (status 500) | with `trust_absent_peer`: the header is missing, or holds no address |
//! | [`FromExtension`] | the extensions hold no such value (status 500) | never: the function of a [`LookupLayer`] returns the response |
//! | a closure | `None`, or [`MissingKey::from_request`] | `Err`, or [`MissingKey::unusable`] |
//! | `first.or(second)` | both keys are absent | the first key is unusable, or the first is absent and the second unusable |
//! | a tuple of extractors | one key is absent, none is unusable | one key is unusable |
//! | [`Method`], [`Path`], `MatchedPath`, [`Global`] | never | never |
//!
//! With `canonical`, the key of a header or a secret is also unusable if the value has no canonical form.

mod canonical;
mod closure;
mod exempt;
pub(crate) mod extract;
mod from_extension;
mod global;
pub(crate) mod ip;
mod lookup;
mod missing;
mod or;
mod request;
mod secret;
mod text;
mod tuple;

pub use self::exempt::{ExactPaths, ExemptIf, InNetworks, Preflight};
pub(crate) use self::extract::ExtractKey;
pub use self::extract::Extracted;
pub use self::from_extension::FromExtension;
pub use self::global::Global;
pub use self::ip::TrustedProxies;
pub(crate) use self::ip::{ClientIp, PeerIp};
pub use self::lookup::{Lookup, LookupFuture, LookupLayer};
pub use self::missing::MissingKey;
pub use self::or::{Either, Or};
#[cfg(feature = "axum")]
pub use self::request::MatchedPath;
#[cfg(any(feature = "axum", feature = "serde"))]
pub(crate) use self::request::NO_ROUTE;
pub(crate) use self::request::path_of;
pub use self::request::{Header, Host, Method, Path};
pub use self::secret::{Credential, Fingerprint, Pepper, ProcessPepper};
pub use self::text::KeyText;
pub use crate::encode::{EncodeKey, KeyWriter};
// Bounds and default types of the items above: nameable for generic code, not documented. Closures implement those
// traits that users extend.
#[doc(hidden)]
pub use self::{
    closure::IntoExtracted,
    exempt::Predicate,
    ip::{FromExtensions, KnownAddress, PeerAddress},
    secret::Fingerprinter,
};
