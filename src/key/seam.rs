use std::borrow::Cow;
use std::fmt;

/// Says whose request it is.
///
/// Closures are extractors: `|request: &Request| -> Option<Key>`. A `None` or an `Err` is a *missing* key, which is
/// refused unless the layer is told otherwise: so that nobody lifts a limit by leaving a header out. To let a request
/// pass without a limit, say so with [`Extracted::Exempt`].
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
    /// The request should have a key, and has none.
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

/// Why there is no key, and whose fault it is.
///
/// The text is sent to clients: it must not hold a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    reason: Cow<'static, str>,
    by_server: bool,
}

impl Missing {
    /// The request lacks something that the client should have sent. Answered with status 400.
    #[must_use]
    pub fn from_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), by_server: false }
    }

    /// The server is put together such that it can't know. Answered with status 500.
    #[must_use]
    pub fn from_server(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), by_server: true }
    }

    /// What is missing.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it is the server that lacks something, not the request.
    #[must_use]
    pub fn is_from_server(&self) -> bool {
        self.by_server
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
