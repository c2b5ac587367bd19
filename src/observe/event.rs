use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, DecisionSource, LimitStatus, Verdict};
use crate::error::Error;

/// An event that an [`Observer`](super::Observer) receives.
///
/// The layer emits exactly one terminal event for each request: [`Decided`](Self::Decided), [`Exempt`](Self::Exempt),
/// [`MissingKey`](Self::MissingKey), [`Failed`](Self::Failed) or [`Abandoned`](Self::Abandoned). The layer emits it
/// when it forwards or rejects the request, or when the request's future is dropped before that.
/// [`outcome`](Self::outcome) returns its name. All other events are additional.
/// `limiter::Observed` emits the same events for callers of a limiter.
///
/// No event describes the inner service's response.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The layer forwarded or rejected the request, as the decision demands.
    ///
    /// A delayed request is forwarded after its wait.
    #[non_exhaustive]
    Decided {
        /// The decision.
        decision: &'a Decision,
        /// The time that the limiter took for the request's own decision. `None` if it was ready immediately.
        elapsed: Option<Duration>,
    },
    /// The layer forwarded the request, because no limit applies to it.
    Exempt,
    /// The request has no key that can be used.
    #[non_exhaustive]
    MissingKey {
        /// The reason. The reason of a custom extractor may repeat text that the client has sent.
        reason: Reason<'a>,
        /// Whether the server is misconfigured.
        server_error: bool,
        /// Whether the layer forwarded the request ([`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt)).
        forwarded: bool,
    },
    /// The limiter could not decide, and the layer rejected the request.
    #[non_exhaustive]
    Failed {
        /// The limiter's error.
        error: &'a Error,
        /// The time until the error of the request's own decision. `None` if it was ready immediately.
        elapsed: Option<Duration>,
    },
    /// The layer neither forwarded nor rejected the request.
    ///
    /// The request's future was dropped, or the inner service failed in `poll_ready` after a wait.
    #[non_exhaustive]
    Abandoned {
        /// The stage that the request had reached.
        stage: Stage,
    },

    /// A request starts to wait in a queue.
    WaitStarted,
    /// A request stops waiting.
    #[non_exhaustive]
    WaitEnded {
        /// The time that the request has waited.
        waited: Duration,
        /// How the wait ended.
        end: WaitEnd,
    },
    /// The layer rejects a request at once that would wait behind others: the queue is full, or too long for the request
    /// to start within its maximum wait.
    WaitRefused,
    /// A queue has asked the limiter for a start.
    #[non_exhaustive]
    WaitAsked {
        /// Whether the limiter has admitted a start.
        admitted: bool,
    },
    /// The layer settled a held cost.
    ///
    /// The response determines the charged cost. If the response's future is dropped, the layer charges the held cost.
    ///
    /// Costs in [units](crate::Costs) are further events, one for each unit.
    #[non_exhaustive]
    Settled {
        /// The unit of the costs. `None` for the cost on limits that name no unit, also if the limiter has no such limit.
        unit: Option<&'a str>,
        /// The held cost.
        held: u64,
        /// The charged cost. A smaller one releases the rest of the held cost. A greater one adds a surcharge.
        actual: u64,
    },

    /// A [`PacingLayer`](crate::pacing::PacingLayer) has passed bytes of a body on, or ends the body with an error.
    #[non_exhaustive]
    Paced {
        /// The direction of the body.
        direction: Direction,
        /// The name of the most restrictive limit. `None` with an error, and if the decision has no limit.
        limit: Option<&'a str>,
        /// The number of bytes. Zero with an error.
        bytes: u64,
        /// The time that the bytes have waited for their limit.
        waited: Duration,
        /// The error with which the body ends: the limiter failed, or allows no bytes in time.
        error: Option<&'a Error>,
    },

    /// A limit on requests [in flight](crate::InFlight) has allowed a request, which the layer forwards.
    #[non_exhaustive]
    InFlightStarted {
        /// The held cost.
        cost: u64,
    },
    /// A request in flight has ended.
    ///
    /// The response's body has ended or was dropped, the service has failed, or the response's future was dropped.
    #[non_exhaustive]
    InFlightEnded {
        /// The released cost.
        cost: u64,
        /// The time from the decision to the end.
        lasted: Duration,
    },

    /// A [shadow](crate::Limit::shadow) limit in memory did not count a request that it allows, because its table is
    /// full of keys with held costs: see [`LimitStatus::is_uncounted`].
    #[non_exhaustive]
    ShadowUncounted {
        /// The limit's name.
        limit: &'a str,
    },

    /// A key was denied too often, and is blocked: see [`Escalating`](crate::limiter::Escalating).
    #[non_exhaustive]
    Escalated {
        /// The name of the limit under which the key is blocked.
        limit: &'a str,
        /// The duration of the block.
        duration: Duration,
        /// Which of the [durations](crate::limiter::Escalation::block_for) it is, from 1.
        step: usize,
    },
    /// The charge of a decision has brought a key to a limit's [mark](crate::Limit::warn_at).
    ///
    /// At most one event per key and minute: see [`Limit::warn_at`](crate::Limit::warn_at). The event follows the
    /// [`Decided`](Self::Decided) of the request. For every crossing see
    /// [`LimitStatus::crossed_mark`].
    #[non_exhaustive]
    NearLimit {
        /// The limit's name.
        limit: &'a str,
    },

    /// A store executed a batch of operations in one call.
    #[non_exhaustive]
    Batch {
        /// The limiter's name in the store.
        store: &'a str,
        /// The number of operations.
        size: usize,
        /// The time from sending the call to the reply.
        elapsed: Duration,
        /// The error of a failed call.
        error: Option<&'a Error>,
    },
    /// The circuit breaker of a store opened, because the store does not respond, or closed again.
    #[non_exhaustive]
    Breaker {
        /// The limiter's name in the store.
        store: &'a str,
        /// The error that opened the circuit breaker. `None` if the circuit breaker closed.
        error: Option<&'a Error>,
    },
    /// Decisions were dropped uncharged, because they could not be answered within their deadline.
    ///
    /// Each of these decisions is an error of the limiter.
    #[non_exhaustive]
    Shed {
        /// The limiter's name in the store.
        store: &'a str,
        /// Where the decisions were dropped.
        cause: ShedCause,
        /// The number of decisions.
        count: usize,
    },
    /// A store settled expired holds in full.
    ///
    /// The processes that held the costs did not renew the holds in time.
    ///
    /// The limiter whose call found the expired holds emits the event.
    #[non_exhaustive]
    HoldsExpired {
        /// The limiter's name in the store.
        store: &'a str,
        /// The number of expired sessions. A session is the holds of one process on one key.
        count: usize,
    },
    /// Requests in flight are no longer counted, because their holds have expired in the store, and other requests have
    /// taken their places. The process renews the holds as soon as there is room again.
    #[non_exhaustive]
    InFlightUncounted {
        /// The limiter's name in the store.
        store: &'a str,
        /// The cost that is not counted.
        cost: u64,
    },
    /// A lease has reported to its store.
    ///
    /// The units that this process holds are the sum of `granted`, less the sums of `spent`, `returned` and `lost`.
    #[non_exhaustive]
    LeaseRenewed {
        /// The limiter's name in the store.
        store: &'a str,
        /// The units that the store has granted.
        granted: u64,
        /// The units that the process has spent, and the store has charged.
        spent: u64,
        /// The units that the process has returned.
        returned: u64,
        /// The units that the store has charged although the process may not have spent them, because the lease has
        /// expired.
        lost: u64,
    },
    /// The memory usage of a limit: see [`Memory::report_usage`](crate::Memory::report_usage).
    #[non_exhaustive]
    Usage {
        /// The limit's name.
        limit: &'a str,
        /// The number of stored keys that are not idle.
        live_keys: usize,
        /// The number of keys that the table can store.
        capacity: usize,
        /// The bytes of the table.
        bytes: usize,
        /// The number of keys that the full table has evicted before they were idle.
        evicted: u64,
        /// The number of keys with [held](crate::limiter::Held) costs.
        held_keys: usize,
        /// The sum of the held costs.
        held: u64,
    },
    /// The application is misconfigured.
    ///
    /// - Limiters in one Redis conflict.
    /// - A response carries two limits of one name.
    /// - A request is settled with a [unit](crate::Costs) that no limit names, so its whole held cost is charged.
    /// - [`MissingKeyPolicy::Exempt`](crate::MissingKeyPolicy::Exempt) exempts requests because the server is
    ///   misconfigured: without connect info, for example, no request has an address, and no limit applies.
    /// - [`Escalating`](crate::limiter::Escalating) cannot count denials.
    /// - No runtime renews the holds in Redis, so they may expire.
    /// - Many of the first requests come from one private address, which [`PeerIp`](crate::PeerIp) counts by, and a proxy
    ///   has added `X-Forwarded-For`: [`ExtractKey::proxy`](crate::ExtractKey::proxy).
    ///
    /// Each layer or limiter emits one event of every kind but those about Redis. Without an observer, a debug build prints
    /// the one about the proxy on the standard error, and the causes of "server misconfigured".
    #[non_exhaustive]
    Warning {
        /// The problem and its solution.
        message: &'a str,
    },
}

/// Why a request has [no key](Event::MissingKey). The text is in `Display`; `Debug` omits it, because it may repeat text of
/// the client.
#[derive(Clone, Copy)]
pub struct Reason<'a>(&'a dyn fmt::Display);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reason(..)")
    }
}

/// Where decisions were [dropped uncharged](Event::Shed), because they could not be answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedCause {
    /// Before they were sent: more decisions arrive than the store can make, or calls take longer than the deadline.
    NotSent,
    /// In the store: a call was delayed on its way.
    ArrivedLate,
}

impl ShedCause {
    /// Returns the cause as a label for metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::ArrivedLate => "arrived_late",
        }
    }
}

/// How the wait of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnd {
    /// The layer forwarded the request.
    Served,
    /// The layer rejected the request.
    Rejected,
    /// The request's future was dropped, or the inner service failed in `poll_ready`.
    Left,
}

impl WaitEnd {
    /// Returns the end as a label for metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Rejected => "rejected",
            Self::Left => "left",
        }
    }
}

/// The direction of a [paced](Event::Paced) body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a body is of a request or of a response")]
pub enum Direction {
    /// The body of a response.
    Download,
    /// The body of a request.
    Upload,
}

impl Direction {
    /// Returns the direction as a label for metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

/// The stage that an [abandoned](Event::Abandoned) request had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// A store was deciding. The store may have charged the request.
    Deciding,
    /// The request waited in a queue, or for the inner service.
    ///
    /// A waiting request is not charged. A start that it had received goes to the next waiting request.
    Waiting,
}

/// Events that a middleware or a limiter of your own emits. [`Exempt`](Self::Exempt) has no fields.
impl<'a> Event<'a> {
    /// Creates [`Decided`](Self::Decided), or [`Exempt`](Self::Exempt) if no limit [applies](Decision::is_exempt).
    pub fn decided(decision: &'a Decision, elapsed: Option<Duration>) -> Self {
        if decision.is_exempt() { Self::Exempt } else { Self::Decided { decision, elapsed } }
    }

    /// Creates [`MissingKey`](Self::MissingKey).
    pub const fn missing_key(reason: &'a dyn fmt::Display, server_error: bool, forwarded: bool) -> Self {
        Self::MissingKey { reason: Reason(reason), server_error, forwarded }
    }

    /// Creates [`Failed`](Self::Failed).
    pub const fn failed(error: &'a Error, elapsed: Option<Duration>) -> Self {
        Self::Failed { error, elapsed }
    }

    /// Creates [`Abandoned`](Self::Abandoned).
    pub const fn abandoned(stage: Stage) -> Self {
        Self::Abandoned { stage }
    }

    /// Creates [`Settled`](Self::Settled).
    pub const fn settled(unit: Option<&'a str>, held: u64, actual: u64) -> Self {
        Self::Settled { unit, held, actual }
    }

    /// Creates [`InFlightStarted`](Self::InFlightStarted).
    pub const fn in_flight_started(cost: u64) -> Self {
        Self::InFlightStarted { cost }
    }

    /// Creates [`InFlightEnded`](Self::InFlightEnded).
    pub const fn in_flight_ended(cost: u64, lasted: Duration) -> Self {
        Self::InFlightEnded { cost, lasted }
    }

    /// Creates [`Warning`](Self::Warning).
    pub const fn warning(message: &'a str) -> Self {
        Self::Warning { message }
    }
}

impl Event<'_> {
    /// Returns the outcome of a request as a label for metrics and logs.
    ///
    /// `None` if the event is not a terminal event. The outcomes are `allowed`, `delayed` (allowed after a wait),
    /// `denied`, `exceeds_limit`, `exempt`, `missing_key`, `missing_key_exempt`, `failed`, `conflict` (the reservation
    /// id is [open](Decision::is_repeat), [settled](Error::is_already_settled) or has
    /// [another cost](Error::is_id_conflict)) and `abandoned`.
    pub fn outcome(&self) -> Option<&'static str> {
        Some(match self {
            Self::Decided { decision, .. } if decision.is_repeat() && !decision.is_allowed() => "conflict",
            Self::Decided { decision, .. } => match decision.verdict() {
                Verdict::Allowed => "allowed",
                Verdict::AllowedAfter(_) => "delayed",
                Verdict::Denied { .. } => "denied",
                Verdict::ExceedsLimit => "exceeds_limit",
            },
            Self::Exempt => "exempt",
            Self::MissingKey { forwarded: false, .. } => "missing_key",
            Self::MissingKey { forwarded: true, .. } => "missing_key_exempt",
            Self::Failed { error, .. } if error.is_conflict() => "conflict",
            Self::Failed { .. } => "failed",
            Self::Abandoned { .. } => "abandoned",
            _ => return None,
        })
    }

    /// Returns the name of the most restrictive limit, or of the limit that the event is about.
    pub fn limit(&self) -> Option<&str> {
        match self {
            Self::Decided { decision, .. } => decision.most_restrictive().map(LimitStatus::name),
            Self::Usage { limit, .. }
            | Self::ShadowUncounted { limit }
            | Self::NearLimit { limit }
            | Self::Escalated { limit, .. } => Some(limit),
            Self::Paced { limit, .. } => *limit,
            _ => None,
        }
    }

    /// Returns the source of the decision as a label: `store`, `lease`, `cache`, `fallback` or `no_limit`.
    pub fn source(&self) -> Option<&'static str> {
        let Self::Decided { decision, .. } = self else { return None };
        Some(match decision.source() {
            DecisionSource::Store => "store",
            DecisionSource::Lease => "lease",
            DecisionSource::Cache => "cache",
            DecisionSource::Fallback => "fallback",
            DecisionSource::NoLimit => "no_limit",
        })
    }
}
