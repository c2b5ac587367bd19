use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;

/// The reason why an extractor found no key.
///
/// | Kind | Made by | `.or(..)` | [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) | Status |
/// |---|---|---|---|---|
/// | absent | [`from_request`](Self::from_request) | uses the other extractor | forwards the request | 400 |
/// | unusable | [`unusable`](Self::unusable) | rejects the request | rejects the request | 400 |
/// | misconfigured | [`from_server`](Self::from_server) | uses the other extractor | forwards the request | 500 |
///
/// A client that has a credential can always make the credential unusable, for example by sending it twice. An
/// application may still accept the credential. Therefore an unusable key never lifts a limit.
///
/// Clients receive the reason of an absent or an unusable key: the reason must not contain a secret. Clients do not
/// receive the reason of a misconfigured server.
#[derive(Clone, Debug)]
pub struct MissingKey {
    reason: Reason,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Unusable,
    Misconfigured,
}

/// Formatted on demand: with [`Or`](super::Or), the first key may be absent in most requests.
#[derive(Clone, Debug)]
enum Reason {
    Text(Cow<'static, str>),
    Header { name: HeaderName, problem: &'static str },
    Cookie { name: Arc<str>, problem: &'static str },
}

impl MissingKey {
    /// The key is absent: the request contains nothing that the extractor reads. Rejected with status 400.
    ///
    /// Another extractor may find a key ([`Or`](super::Or)), and the layer may forward the request without a limit
    /// ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)).
    pub fn from_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Absent }
    }

    /// The key is unusable: it is repeated, empty or malformed. Always rejected, with status 400.
    ///
    /// Neither another extractor nor [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) applies.
    /// [`exempt_if`](crate::RateLimitLayer::exempt_if) does, because an exempt request needs no key.
    pub fn unusable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Unusable }
    }

    /// The server is misconfigured, so that no request has a key. Rejected with status 500.
    ///
    /// Only observers receive the reason. Clients receive the text `server misconfigured`.
    pub fn from_server(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Misconfigured }
    }

    pub(super) fn absent_header(name: &HeaderName, problem: &'static str) -> Self {
        Self { reason: Reason::Header { name: name.clone(), problem }, kind: Kind::Absent }
    }

    pub(super) fn unusable_header(name: &HeaderName, problem: &'static str) -> Self {
        Self { reason: Reason::Header { name: name.clone(), problem }, kind: Kind::Unusable }
    }

    pub(super) fn absent_cookie(name: &Arc<str>) -> Self {
        Self { reason: Reason::Cookie { name: Arc::clone(name), problem: "is missing" }, kind: Kind::Absent }
    }

    pub(super) fn unusable_cookie(name: &Arc<str>, problem: &'static str) -> Self {
        Self { reason: Reason::Cookie { name: Arc::clone(name), problem }, kind: Kind::Unusable }
    }

    /// Returns the reason.
    pub fn reason(&self) -> Cow<'_, str> {
        match &self.reason {
            Reason::Text(text) => Cow::Borrowed(text),
            Reason::Header { .. } | Reason::Cookie { .. } => Cow::Owned(self.to_string()),
        }
    }

    /// Whether the server is misconfigured.
    pub fn is_server_error(&self) -> bool {
        self.kind == Kind::Misconfigured
    }

    /// Whether the key is unusable.
    pub fn is_unusable(&self) -> bool {
        self.kind == Kind::Unusable
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Text(text) => f.write_str(text),
            Reason::Header { name, problem } => write!(f, "the header {name} {problem}"),
            Reason::Cookie { name, problem } => write!(f, "the cookie {name} {problem}"),
        }
    }
}

impl PartialEq for MissingKey {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.reason() == other.reason()
    }
}

impl Eq for MissingKey {}
