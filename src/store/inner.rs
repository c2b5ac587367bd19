//! All that the stores use of the inside of the crate. Everything else that they import is public, so a store of a user's
//! own could import it, too. The test `stores_import_the_inside_from_one_module` holds this.
//!
//! | Step of a call | Names |
//! |---|---|
//! | build: check the limits together, and place their shares | `check_limits`, `LimitFacts`, `Shares`, `Name`, `impl_into_limits` |
//! | prepare: what each limit costs | `LimitCost` |
//! | read each state | `AlgorithmExt`, `Transition`, `ReadMode`, `InLine`, `LimitReading`, `Counting`, `NearLimit`, `WarnKeys` |
//! | combine the readings | `HasReading`, `ShareRole`, `Plan` |
//! | decide after the charges | `LimitNumbers`, `DecisionPart`, `StatusList` |
//! | hold, and settle | `HeldEntry`, `HeldCharge`, `HoldStore`, `ReleaseOnDrop` |
//! | hold by an id | `CallId` |
//! | keys and states as bytes | `hash_if_long`, `hex`, `StateEncoding` |
//! | times | `micros_floor`, `latest_end`, `MAX_PERIOD_MICROS` |
//! | emit events, wake waiting requests | `LimitOfKey`, `limit_id`, `any_queue`, `capacity_added`, `capacity_released`, `Observers` |
//! | machinery below all limits | `sync`, `runtime`, `with_scratch`, `BoxFuture` |

/// Peeks at a state, and charges it.
pub(crate) use crate::algorithm::AlgorithmExt;
/// The argument of `Algorithm::decide_in_line`, the common case of a decision.
pub(crate) use crate::algorithm::InLine;
/// The end of a span of time, up to the latest time that a state can store.
pub(crate) use crate::clock::latest_end;
/// A span in whole microseconds, rounded down.
pub(crate) use crate::clock::micros_floor;
/// The id of a call, and what the store remembers of it.
pub(crate) use crate::decision::CallId;
/// Whether a limit counts a request that it allows.
pub(crate) use crate::decision::Counting;
/// The numbers of one limit for a decision, made on demand.
pub(crate) use crate::decision::DecisionPart;
/// What contains the reading of one limit, for the plan.
pub(crate) use crate::decision::HasReading;
/// The numbers of a limit after a charge, with its mark.
pub(crate) use crate::decision::LimitNumbers;
/// What one limit says alone, before the limits are combined.
pub(crate) use crate::decision::LimitReading;
/// The name of a limit, cheap to clone.
pub(crate) use crate::decision::Name;
/// What a reading knows of a limit's mark.
pub(crate) use crate::decision::NearLimit;
/// The rule: what all limits decide together, and what each of them is charged.
pub(crate) use crate::decision::Plan;
/// The part of a limit in guaranteed shares.
pub(crate) use crate::decision::ShareRole;
/// The limits that a decision lists.
pub(crate) use crate::decision::StatusList;
/// Hashes a long key, so that the names of keys are short.
pub(crate) use crate::encode::hash_if_long;
/// The properties of a limit that depend on no key type.
pub(crate) use crate::limit::LimitFacts;
/// What a reading must contain besides the verdict.
pub(crate) use crate::limit::ReadMode;
/// The guaranteed shares of a limiter.
pub(crate) use crate::limit::Shares;
/// One limit of a decision with the algorithm for the key: reads a state, and makes the next one.
pub(crate) use crate::limit::Transition;
/// Checks the limits of a limiter together.
pub(crate) use crate::limit::check_limits;
/// Implements a store's `Into..Limits` for algorithms, limits, tuples and vectors.
pub(crate) use crate::limit::impl_into_limits;
/// The parts of a hold, and how a store settles them.
pub(crate) use crate::limiter::{HeldCharge, HeldEntry, HoldStore, ReleaseOnDrop};
/// Wakes requests that wait for capacity.
pub(crate) use crate::limiter::{LimitOfKey, any_queue, capacity_added, capacity_released, limit_id};
/// Atomics and locks, real or of loom.
pub(crate) use crate::sync;

/// Names that only Redis uses.
#[cfg(feature = "redis")]
mod of_redis {
    /// Whether a state travels whole, or only a header of it.
    pub(crate) use crate::algorithm::StateEncoding;
    /// The longest period, for the check of durations.
    pub(crate) use crate::clock::MAX_PERIOD_MICROS;
    /// Bytes in hexadecimal digits, for secret key names.
    pub(crate) use crate::encode::hex;
    /// What a limit costs: the request's cost, a unit's, or a fixed one.
    pub(crate) use crate::limit::LimitCost;
    /// The mark of a limit, with the keys that crossed it recently.
    pub(crate) use crate::limit::WarnKeys;
    /// A boxed future of the client.
    pub(crate) use crate::limiter::BoxFuture;
    /// Emits events to all observers of a limiter.
    pub(crate) use crate::observe::Observers;
    /// Timers and tasks of the runtime at hand.
    pub(crate) use crate::runtime;
    /// A thread's buffer, for encoding without an allocation.
    pub(crate) use crate::scratch::with_scratch;
}
#[cfg(feature = "redis")]
pub(crate) use self::of_redis::*;
