use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, DecisionSource, Verdict};
use crate::error::Error;

/// What an [`Observer`](super::Observer) is told.
///
/// Of each request that a layer's service is called with, exactly one of [`Decided`](Self::Decided), [`Exempt`](Self::Exempt),
/// [`Missing`](Self::MissingKey), [`Failed`](Self::Failed) and [`Abandoned`](Self::Abandoned) is told, when it is forwarded or
/// answered, or when its future is dropped before that. [`outcome`](Self::outcome) names which. All other events come beside
/// these.
///
/// What becomes of a request once the inner service has it is for others to tell.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A decision was carried out: the request was forwarded, if need be after waiting, or refused.
    #[non_exhaustive]
    Decided {
        /// The decision.
        decision: &'a Decision,
        /// How long it took, if it was not ready at once; of a request that has asked several times, all of them together.
        took: Option<Duration>,
    },
    /// The request was forwarded under no limit.
    Exempt,
    /// The request lacks its key.
    #[non_exhaustive]
    MissingKey {
        /// What is missing. It may repeat what a client has sent if a closure of yours says that.
        reason: &'a dyn fmt::Display,
        /// Whether it is the server that is misconfigured, and not the request.
        by_server: bool,
        /// Whether it was forwarded under no limit ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)), or refused.
        forwarded: bool,
    },
    /// The limiter could not decide, and the request was refused.
    #[non_exhaustive]
    Failed {
        /// Why.
        error: &'a Error,
        /// How long it took to know, if that was not at once.
        took: Option<Duration>,
    },
    /// The request was neither forwarded nor refused: its future was dropped before, or the inner service has failed while it
    /// was made ready for it.
    #[non_exhaustive]
    Abandoned {
        /// How far it had come.
        stage: Stage,
    },

    /// A request waits for its turn from now on, or to ask again.
    WaitStarted,
    /// A request that has waited waits no longer: it is forwarded, refused or abandoned.
    #[non_exhaustive]
    WaitEnded {
        /// For how long it has waited.
        waited: Duration,
    },
    /// The layer settled a held cost: by the response, or whole as the response's future was dropped.
    #[non_exhaustive]
    Settled {
        /// The held cost.
        held: u64,
        /// The charged cost. What was held beyond it is released; what it is beyond the held cost is a surcharge.
        actual: u64,
    },

    /// A store was asked for some decisions and operations in one call.
    #[non_exhaustive]
    Batch {
        /// The limiter's name in the store.
        store: &'a str,
        /// How many they were.
        orders: usize,
        /// How long it took.
        took: Duration,
        /// Why there was no answer.
        error: Option<&'a Error>,
    },
    /// A store is not asked any more as it does not answer, or it answers again.
    #[non_exhaustive]
    Breaker {
        /// The limiter's name in the store.
        store: &'a str,
        /// Why it is not asked. `None` if it is again.
        open: Option<&'a Error>,
    },
    /// A store settled held costs whole, as the processes that held them did not renew them in time. The limiter whose call
    /// found that emits it.
    #[non_exhaustive]
    HoldsExpired {
        /// The limiter's name in the store.
        store: &'a str,
        /// How many sessions of processes on one key have expired.
        count: usize,
    },
    /// How full a limit's memory is: see [`Memory::report_usage`](crate::Memory::report_usage).
    #[non_exhaustive]
    Usage {
        /// The limit's name.
        limit: &'a str,
        /// Keys that are remembered and not as good as new.
        live_keys: usize,
        /// For how many keys there is room.
        room: usize,
        /// The bytes of its table.
        bytes: usize,
        /// How many keys were forgotten since it was made that were not as good as new, as there was no room.
        forgotten: u64,
        /// On how many keys costs are [held](crate::limiter::Held).
        held_keys: usize,
        /// The sum of the held costs.
        held: u64,
    },
    /// Something is put together such that it hardly does what is meant: two limits in one Redis are at odds, or a
    /// response carries two limits of one name. Each layer emits the latter once, with the first such response.
    #[non_exhaustive]
    Warning {
        /// What, and how to mend it.
        message: &'a str,
    },
}

/// How far a request had come that was [abandoned](Event::Abandoned).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// A limiter elsewhere was deciding: it may or may not have charged.
    Deciding,
    /// It waited for its start, or for the inner service to be ready then. What it was charged stays charged; what was held for
    /// it is released.
    Waiting,
}

impl Event<'_> {
    /// What became of a request, in one word that metrics and logs can count by: `allowed`, `delayed` (allowed after waiting),
    /// `denied`, `never`, `exempt`, `missing`, `missing_exempt`, `failed` or `abandoned`.
    ///
    /// `None` for events that come beside these: so that there are as many of `Some` as there were requests.
    #[must_use]
    pub fn outcome(&self) -> Option<&'static str> {
        self.kind().map(Kind::name)
    }

    /// The limit that spoke. `None` if none did.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        match self {
            Self::Decided { decision, .. } => decision.most_restrictive().map(crate::decision::LimitStatus::name),
            Self::Usage { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// Who decided, in one word: `store`, `cache`, `fallback` or `policy`. `None` if nobody did.
    #[must_use]
    pub fn source(&self) -> Option<&'static str> {
        let Self::Decided { decision, .. } = self else { return None };
        Some(match decision.source() {
            DecisionSource::Store => "store",
            DecisionSource::Cache => "cache",
            DecisionSource::Fallback => "fallback",
            DecisionSource::Policy => "policy",
        })
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Decided { decision, .. } => match decision.verdict() {
                Verdict::Allowed => Kind::Allowed,
                Verdict::AllowedAfter(_) => Kind::Delayed,
                Verdict::Denied { .. } => Kind::Denied,
                Verdict::ExceedsLimit => Kind::Never,
            },
            Self::Exempt => Kind::Exempt,
            Self::MissingKey { forwarded: false, .. } => Kind::Missing,
            Self::MissingKey { forwarded: true, .. } => Kind::MissingExempt,
            Self::Failed { .. } => Kind::Failed,
            Self::Abandoned { .. } => Kind::Abandoned,
            _ => return None,
        })
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Allowed,
    Delayed,
    Denied,
    Never,
    Exempt,
    Missing,
    MissingExempt,
    Failed,
    Abandoned,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Never => "never",
            Self::Exempt => "exempt",
            Self::Missing => "missing",
            Self::MissingExempt => "missing_exempt",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided { decision, took } => {
                f.debug_struct("Decided").field("decision", decision).field("took", took).finish()
            }
            Self::Exempt => f.write_str("Exempt"),
            // Not the reason: it may repeat what a client has sent.
            Self::MissingKey { by_server, forwarded, .. } => f
                .debug_struct("Missing")
                .field("by_server", by_server)
                .field("forwarded", forwarded)
                .finish_non_exhaustive(),
            Self::Failed { error, took } => f.debug_struct("Failed").field("error", error).field("took", took).finish(),
            Self::Abandoned { stage } => f.debug_struct("Abandoned").field("stage", stage).finish(),
            Self::WaitStarted => f.write_str("WaitStarted"),
            Self::WaitEnded { waited } => f.debug_struct("WaitEnded").field("waited", waited).finish(),
            Self::Settled { held, actual } => {
                f.debug_struct("Settled").field("held", held).field("actual", actual).finish()
            }
            Self::Batch { store, orders, took, error } => f
                .debug_struct("Batch")
                .field("store", store)
                .field("orders", orders)
                .field("took", took)
                .field("error", error)
                .finish(),
            Self::Breaker { store, open } => {
                f.debug_struct("Breaker").field("store", store).field("open", open).finish()
            }
            Self::HoldsExpired { store, count } => {
                f.debug_struct("HoldsExpired").field("store", store).field("count", count).finish()
            }
            Self::Usage { limit, live_keys, room, bytes, forgotten, held_keys, held } => f
                .debug_struct("Usage")
                .field("limit", limit)
                .field("live_keys", live_keys)
                .field("room", room)
                .field("bytes", bytes)
                .field("forgotten", forgotten)
                .field("held_keys", held_keys)
                .field("held", held)
                .finish(),
            Self::Warning { message } => f.debug_struct("Warning").field("message", message).finish(),
        }
    }
}
