//! The error type.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The reason why a limiter could not be built, or could not decide.
///
/// A denial is a [`Decision`](crate::Decision), not an error. The predicates distinguish the kinds of errors. The
/// message names the cause and the remedy. [`source`](StdError::source) returns the underlying error.
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
    UnknownId,
    IdConflict,
    AlreadySettled,
}

impl Error {
    /// Creates an error for an invalid configuration, such as a quota of zero or an invalid address.
    pub fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// Creates an error for a store that could not decide.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// Creates an error for an operation that a limiter does not support.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// Creates the error of an operation on a limit that does not exist.
    pub(crate) fn no_such_limit(name: &str) -> Self {
        Self::config(format!(
            "unknown limit: there is no limit named {name:?}; use the limit's name, which is \"default\" unless set"
        ))
    }

    /// Creates the error of a request that would have to wait without a timer.
    pub(crate) fn no_timer() -> Self {
        Self::config(if cfg!(feature = "timer") {
            "waiting failed: there is no tokio runtime with a timer; build the runtime with `enable_all`"
        } else {
            "waiting failed: the feature `timer` of tower-ratelimit is off; enable it"
        })
    }

    /// Creates the error of a decision with a limit on requests in flight, if the caller does not keep its guard.
    pub(crate) fn guard_not_kept() -> Self {
        Self::config(
            "the decision failed: a limit counts requests in flight, and the caller does not track their end; call \
             `release_on_body_end` or `release_on_response` of the layer, or set `AcquireOptions::keep_guard`",
        )
    }

    /// Creates the error of an operation on a limit that does not apply to its key.
    pub(crate) fn does_not_apply(limit: &str) -> Self {
        Self::config(format!(
            "the operation failed: the limit {limit:?} does not apply to the key; pass a key that satisfies the limit's \
             condition"
        ))
    }

    /// Creates the error of a decision whose guard a custom limiter has replaced by one that holds less.
    pub(crate) fn guard_lacks_parts() -> Self {
        Self::config(
            "the decision failed: a custom limiter has returned a guard without the parts of other limits (requests in \
             flight, fixed costs) that the limiter inside holds; return its guard, or wrap it with `Held::map_settle`",
        )
    }

    /// Creates the error of a settlement whose reservation id is not remembered.
    pub(crate) fn unknown_id() -> Self {
        Self::new(
            Kind::UnknownId,
            "settling failed: unknown id: the key has no hold with this reservation id, or the id is not remembered any \
             more; settle within twice the time of `expires_in`",
        )
    }

    /// Creates the error of a hold whose reservation id belongs to a hold with another cost.
    pub(crate) fn id_conflict() -> Self {
        Self::new(
            Kind::IdConflict,
            "hold failed: the reservation id belongs to a hold with another cost on this key; use a new id for each \
             request",
        )
    }

    /// Creates the error of a hold whose reservation id belongs to a hold that has ended.
    pub(crate) fn already_settled() -> Self {
        Self::new(
            Kind::AlreadySettled,
            "hold failed: the hold with this reservation id on this key is settled or has expired; use a new id for each \
             request",
        )
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Returns whether the configuration is invalid. Such errors occur when a value or a limiter is built.
    pub fn is_config(&self) -> bool {
        self.kind == Kind::Config
    }

    /// Returns whether the store could not decide: it is unreachable, too slow, or returned an error.
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// Returns whether a key has no hold with the reservation id that was to be settled. Nothing was charged.
    pub fn is_unknown_id(&self) -> bool {
        self.kind == Kind::UnknownId
    }

    /// Returns whether a reservation id belongs to a hold with another cost. Nothing more was held.
    pub fn is_id_conflict(&self) -> bool {
        self.kind == Kind::IdConflict
    }

    /// Returns whether a reservation id belongs to a hold that is settled or expired. Nothing was held, and no retry
    /// with the id succeeds.
    pub fn is_already_settled(&self) -> bool {
        self.kind == Kind::AlreadySettled
    }

    /// Returns whether the caller's reservation id is at fault, so that the limiter itself works.
    pub(crate) fn is_conflict(&self) -> bool {
        self.is_already_settled() || self.is_id_conflict()
    }

    /// Returns whether the limiter does not support the operation.
    pub fn is_unsupported(&self) -> bool {
        self.kind == Kind::Unsupported
    }

    /// Returns whether the application is at fault: no retry succeeds.
    pub(crate) fn is_misconfigured(&self) -> bool {
        self.is_config() || self.is_unsupported()
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
