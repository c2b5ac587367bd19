use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;

/// Why there is no key, and whose fault it is.
///
/// The text is sent to clients: it must not hold a secret.
#[derive(Clone, Debug)]
pub struct Missing {
    reason: Reason,
    by_server: bool,
}

/// Put into words only where somebody reads them: of two extractors one may miss its key in most requests.
#[derive(Clone, Debug)]
enum Reason {
    Text(Cow<'static, str>),
    Field { name: HeaderName, how: &'static str },
    Cookie { name: Arc<str>, how: &'static str },
}

impl Missing {
    /// The request lacks something that the client should have sent. Answered with status 400.
    #[must_use]
    pub fn from_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), by_server: false }
    }

    /// The server is put together such that it can't know. Answered with status 500.
    #[must_use]
    pub fn from_server(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Text(reason.into()), by_server: true }
    }

    pub(super) fn field(name: &HeaderName, how: &'static str) -> Self {
        Self { reason: Reason::Field { name: name.clone(), how }, by_server: false }
    }

    pub(super) fn cookie(name: &Arc<str>, how: &'static str) -> Self {
        Self { reason: Reason::Cookie { name: Arc::clone(name), how }, by_server: false }
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
    pub fn is_from_server(&self) -> bool {
        self.by_server
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Text(text) => f.write_str(text),
            Reason::Field { name, how } => write!(f, "the header field {name} {how}"),
            Reason::Cookie { name, how } => write!(f, "the cookie {name} {how}"),
        }
    }
}

impl PartialEq for Missing {
    fn eq(&self, other: &Self) -> bool {
        self.by_server == other.by_server && self.reason() == other.reason()
    }
}

impl Eq for Missing {}
