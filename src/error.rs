//! The one error type.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why a limiter could not be built, or could not decide.
///
/// Being over a limit is a [`Decision`](crate::Decision), never an error. The message says what was wrong, what was
/// expected and how to mend it; the predicates tell the kinds apart; [`source`](StdError::source) keeps the cause.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Config,
    Unavailable,
    Unsupported,
}

impl Error {
    /// A setting that can't be: a zero quota, a period that is not whole microseconds, an unreadable text.
    #[must_use]
    pub fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// A store that could not answer.
    #[must_use]
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// An operation that this limiter does not have.
    #[must_use]
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Whether a setting was wrong: found when a value or a limiter is built.
    #[must_use]
    pub fn is_config(&self) -> bool {
        self.kind == Kind::Config
    }

    /// Whether the store could not answer: gone, too slow, or refusing.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// Whether the limiter does not have the operation that was asked of it.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind == Kind::Unsupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.kind).field("message", &self.message);
        if let Some(source) = &self.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
