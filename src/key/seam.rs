use super::missing::Missing;

/// Says whose request it is.
///
/// Closures are extractors: `|request: &Request| -> Option<Key>`. A `None` is an *absent* key. The layer refuses the
/// request unless [`WhenMissing::Exempt`](crate::WhenMissing::Exempt) is set, so that leaving a header out does not
/// lift a limit. An `Err` is an *unusable* key (sent twice, empty, malformed), which the layer always refuses: see
/// [`Missing`]. To let a request pass without a limit, return [`Extracted::Exempt`].
///
/// # Example
///
/// ```
/// use tower_ratelimit::key::{ExtractKey, Extracted, Missing};
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
///             None => Extracted::Missing(Missing::from_request("the call names no tenant")),
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
    Missing(Missing),
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
