use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;

/// Why there is no key: the request has none, has one that is unusable, or the server is misconfigured.
///
/// | Kind | Made by | `.or(..)` | [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) | Status |
/// |---|---|---|---|---|
/// | absent | [`from_request`](Self::from_request) | asks the other extractor | forwards the request | 400 |
/// | unusable | [`unusable`](Self::unusable) | refuses the request | refuses the request | 400 |
/// | misconfigured | [`from_server`](Self::from_server) | asks the other extractor | forwards the request | 500 |
///
/// A client that has a credential can always make the credential unusable, for example by sending it twice. An
/// application may still accept the credential. So an unusable key never lifts a limit.
///
/// The text of an absent or an unusable key is sent to clients: it must not hold a secret. That of a misconfigured server is
/// not.
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

/// Put into words only where somebody reads them: of two extractors one may miss its key in most requests.
#[derive(Clone, Debug)]
enum Reason {
    Text(Cow<'static, str>),
    Field { name: HeaderName, how: &'static str },
    Cookie { name: Arc<str>, how: &'static str },
}

impl MissingKey {
    /// The key is absent: the request holds nothing that the extractor reads. Answered with status 400.
    ///
    /// Another extractor may find a key ([`Or`](super::Or)), and the layer may forward the request under no limit
    /// ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)).
    #[must_use]
    pub fn from_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Absent }
    }

    /// The key is unusable: the request holds it twice, empty or malformed. Always refused, with status 400.
    ///
    /// No other extractor is asked for a key, and the request is not forwarded under no limit. (A request that
    /// [`exempt_if`](crate::RateLimitLayer::exempt_if) exempts needs no key, and passes.)
    #[must_use]
    pub fn unusable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Unusable }
    }

    /// The server is misconfigured, so that no request has a key. Answered with status 500.
    ///
    /// The text reaches observers only, and so logs: clients learn that the server is misconfigured, and no more.
    #[must_use]
    pub fn from_server(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), kind: Kind::Misconfigured }
    }

    pub(super) fn absent_field(name: &HeaderName, how: &'static str) -> Self {
        Self { reason: Reason::Field { name: name.clone(), how }, kind: Kind::Absent }
    }

    pub(super) fn unusable_field(name: &HeaderName, how: &'static str) -> Self {
        Self { reason: Reason::Field { name: name.clone(), how }, kind: Kind::Unusable }
    }

    pub(super) fn absent_cookie(name: &Arc<str>) -> Self {
        Self { reason: Reason::Cookie { name: Arc::clone(name), how: "is missing" }, kind: Kind::Absent }
    }

    pub(super) fn unusable_cookie(name: &Arc<str>, how: &'static str) -> Self {
        Self { reason: Reason::Cookie { name: Arc::clone(name), how }, kind: Kind::Unusable }
    }

    /// What is missing.
    #[must_use]
    pub fn reason(&self) -> Cow<'_, str> {
        match &self.reason {
            Reason::Text(text) => Cow::Borrowed(text),
            Reason::Field { .. } | Reason::Cookie { .. } => Cow::Owned(self.to_string()),
        }
    }

    /// Whether it is the server that lacks something, not the request.
    #[must_use]
    pub fn is_server_error(&self) -> bool {
        self.kind == Kind::Misconfigured
    }

    /// Whether the request holds a key that cannot be used.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.kind == Kind::Unusable
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Text(text) => f.write_str(text),
            Reason::Field { name, how } => write!(f, "the header field {name} {how}"),
            Reason::Cookie { name, how } => write!(f, "the cookie {name} {how}"),
        }
    }
}

impl PartialEq for MissingKey {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.reason() == other.reason()
    }
}

impl Eq for MissingKey {}
