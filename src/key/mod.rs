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
//! the request pass ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)). An *unusable* key is always refused, with
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
//! | a closure | `None`, or [`MissingKey::from_request`] | `Err`, or [`MissingKey::unusable`] |
//! | `one.or(another)` | both keys are absent | the first key is unusable, or the first is absent and the second unusable |
//! | a tuple of extractors | one key is absent, none is unusable | one key is unusable |
//! | [`Method`], [`Path`], `MatchedPath`, [`Global`] | never | never |

mod closure;
mod exempt;
mod extension;
mod global;
mod ip;
mod lookup;
mod missing;
mod or;
mod request;
mod secret;
mod text;
mod tuple;

pub use self::closure::IntoExtracted;
pub use self::exempt::{ClientNetworks, ExactPaths, ExemptIf, PeerNetworks, Predicate, Preflight};
pub use self::extension::Extension;
pub use self::global::Global;
pub use self::ip::{ClientIp, FromExtensions, PeerAddress, PeerIp, TrustedProxies};
pub use self::lookup::{Lookup, LookupFuture, LookupLayer};
pub use self::missing::MissingKey;
pub use self::or::{Either, Or};
#[cfg(feature = "axum")]
pub use self::request::MatchedPath;
pub use self::request::{Header, Host, Method, Path};
pub use self::secret::{ApiKey, Bearer, Cookie, Fingerprint, Fingerprinter, Pepper, ProcessPepper};
pub use self::text::KeyText;
pub use crate::encode::{EncodeKey, KeyWriter};

/// Says whose request it is.
///
/// Closures are extractors: `|request: &Request| -> Option<Key>`. A `None` is an *absent* key. The layer refuses the
/// request unless [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) is set, so that leaving a header out does not
/// lift a limit. An `Err` is an *unusable* key (sent twice, empty, malformed), which the layer always refuses: see
/// [`Missing`]. To let a request pass without a limit, return [`Extracted::Exempt`].
///
/// # Example
///
/// ```
/// use tower_ratelimit::key::{ExtractKey, Extracted, MissingKey};
///
/// /// A request of a protocol of our own.
/// struct Call {
///     tenant: Option<u32>,
///     is_ping: bool,
/// }
///
/// #[derive(Clone)]
/// struct Tenant;
///
/// impl ExtractKey<Call> for Tenant {
///     type Key = u32;
///
///     fn extract(&self, call: &Call) -> Extracted<u32> {
///         match call.tenant {
///             _ if call.is_ping => Extracted::Exempt,
///             Some(tenant) => Extracted::Key(tenant),
///             None => Extracted::Missing(MissingKey::from_request("the call names no tenant")),
///         }
///     }
/// }
///
/// assert_eq!(Tenant.extract(&Call { tenant: Some(7), is_ping: false }), Extracted::Key(7));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract a key from `{Request}`",
    note = "an extractor is a type that implements `ExtractKey<{Request}>`, or a closure `|request: &{Request}|` that \
            returns `Option<Key>`, `Result<Key, _>` or `Extracted<Key>`"
)]
pub trait ExtractKey<Request> {
    /// What tells one caller from another.
    type Key;

    /// Reads the key off a request.
    fn extract(&self, request: &Request) -> Extracted<Self::Key>;
}

/// What an extractor found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "there is no fourth thing that a request can be")]
pub enum Extracted<K> {
    /// The request is this key's.
    Key(K),
    /// The request is under no limit.
    Exempt,
    /// The request should have a key, and has none that can be used.
    Missing(MissingKey),
}

impl<K> Extracted<K> {
    /// Changes the key, if there is one.
    pub fn map<T>(self, f: impl FnOnce(K) -> T) -> Extracted<T> {
        match self {
            Self::Key(key) => Extracted::Key(f(key)),
            Self::Exempt => Extracted::Exempt,
            Self::Missing(missing) => Extracted::Missing(missing),
        }
    }
}
