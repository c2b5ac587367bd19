//! The trait between the layer and the key of a request.

use std::net::IpAddr;

use super::MissingKey;
#[cfg(doc)]
use super::PeerIp;

/// Extracts the key of a request: the user, address or tenant that a limit counts by.
///
/// Closures are extractors: `|request: &Request| -> Option<Key>`. A `None` is an *absent* key. The layer rejects the
/// request unless [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) is set, so that a client cannot avoid
/// the limit by omitting a header. An `Err` is an *unusable* key (repeated, empty, malformed), which the layer always
/// rejects: see [`MissingKey`]. To forward a request without a limit, return [`Extracted::Exempt`].
///
/// # Example
///
/// ```
/// use tower_ratelimit::ExtractKey;
/// use tower_ratelimit::key::{Extracted, MissingKey};
///
/// /// A request of a custom protocol.
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
///             None => Extracted::Missing(MissingKey::from_request("the call has no tenant")),
///         }
///     }
/// }
///
/// assert_eq!(Tenant.extract(&Call { tenant: Some(7), is_ping: false }), Extracted::Key(7));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract a key from `{Request}`",
    note = "an extractor is a type that implements `ExtractKey<{Request}>`, or a closure `|request: &{Request}|` that \
            returns `Option<Key>`, `Result<Key, _>` or `Extracted<Key>`; the key owns its data, so write \
            `Some(text.to_owned())` for a text of the request",
    note = "the argument of `exempt_if` is a predicate: `ExactPaths::new([\"/health\"])`, or a closure \
            `|request: &{Request}| -> bool`"
)]
pub trait ExtractKey<Request> {
    /// The key type.
    // Waiting requests are found by a hash of their key, and a task asks the limiter for them.
    type Key: std::hash::Hash + Send + Sync + 'static;

    /// Extracts the key of a request.
    fn extract(&self, request: &Request) -> Extracted<Self::Key>;

    /// Returns the address by which this extractor counts, if the request suggests that it is a proxy's.
    ///
    /// The layer asks about its first requests. If it finds one proxy in many of them, and no other, it emits
    /// [`Event::Warning`](crate::observe::Event::Warning), whose text names [`PeerIp`]. By default there is none.
    fn proxy(&self, request: &Request) -> Option<IpAddr> {
        let _ = request;
        None
    }
}

/// The result of an extractor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the layer handles exactly these three cases")]
pub enum Extracted<K> {
    /// The request has this key.
    Key(K),
    /// No limit applies to the request.
    Exempt,
    /// The request has no key, or an unusable one.
    Missing(MissingKey),
}

impl<K> Extracted<K> {
    /// Maps the key, if there is one.
    pub fn map<T>(self, f: impl FnOnce(K) -> T) -> Extracted<T> {
        match self {
            Self::Key(key) => Extracted::Key(f(key)),
            Self::Exempt => Extracted::Exempt,
            Self::Missing(missing) => Extracted::Missing(missing),
        }
    }
}
