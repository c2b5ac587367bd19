//! The trait between the middleware and the stores, and limiters built from limiters.
//!
//! | Limiter | Purpose |
//! |---|---|
//! | [`BoxLimiter`](crate::BoxLimiter) | a limiter whose type is chosen at run time |
//! | [`DeniedCache`] | caches denials in front of a remote store |
//! | [`FailOpen`] | allows requests while the store is unavailable |
//! | [`Fallback`] | uses another limiter while the store is unavailable |
//! | [`Chained`] | combines limits that one store cannot decide together |
//! | [`Escalating`] | blocks keys that are denied again and again, for longer each time |
//! | [`Observed`] | emits the events of decisions, for code without the layer |
//!
//! All of these are a [`Limiter`], which has the methods `check`, `hold`, `set_usage`, `block` and `reset`:
//! import it. `usage`, `report_usage`, `key_id` and `top_keys` read the tables of [`Memory`](crate::Memory), so only it
//! has them: keep a clone of it. Redis has no list of a limiter's keys.
//!
//! [`Held`] is the guard of a held cost, and [`Reservation`] a hold that counts what is spent. The module `waiting`
//! (feature `timer`) waits for a limiter without the middleware.

mod admin;
pub(crate) mod boxed;
mod capacity;
mod chained;
pub(crate) mod contract;
mod denied_cache;
mod escalating;
mod fail_open;
mod fallback;
mod future;
mod held;
mod held_parts;
mod limits_of_key;
mod observed;
mod outcome;
mod pair;
mod reservation;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub use self::admin::AdminOperation;
pub(crate) use self::capacity::{
    CapacityListener, Released, any_queue, capacity_added, capacity_released, hashers, limit_id, listen, queue_created,
    queues_removed,
};
pub use self::chained::Chained;
pub(crate) use self::contract::Limiter;
pub use self::denied_cache::DeniedCache;
pub use self::escalating::Escalating;
pub use self::fail_open::FailOpen;
pub use self::fallback::Fallback;
#[allow(unused_imports, reason = "few features use it")]
pub(crate) use self::future::BoxFuture;
pub use self::future::LimiterFuture;
pub use self::held::Held;
pub(crate) use self::held::ReleaseOnDrop;
pub(crate) use self::held_parts::{HeldCharge, HeldEntry, HoldStore};
pub(crate) use self::limits_of_key::LimitOfKey;
pub use self::limits_of_key::LimitsOfKey;
pub use self::observed::Observed;
pub use self::outcome::Outcome;
pub use self::reservation::Reservation;
pub use crate::escalation::Escalation;
