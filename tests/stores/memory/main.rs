//! The in-memory store and the limiters that are built from other limiters.

mod admin;
#[path = "../../laws/algorithms/algorithm_ext.rs"]
mod algorithm_ext;
#[path = "../../laws/algorithms/broken_holds.rs"]
mod broken_holds;
mod chained;
mod check_in_flight;
mod conditions;
mod costs;
mod denied_cache;
mod escalating;
mod estimates;
mod eviction;
mod full_tables;
mod holds;
mod idempotency;
mod idempotency_model;
mod immediate;
mod in_flight;
mod kept_free;
mod linearizability;
mod listed_limits;
mod near_events;
mod near_limit;
mod overdue;
mod own_stores;
mod races;
#[path = "../../../src/random.rs"]
mod random;
mod replace;
mod reservation_ids;
mod reservation_model;
mod scheduling;
mod several_limits;
mod shadows;
mod share_law;
mod shares;
mod snapshot;
mod stale_clock;
mod stepping_clocks;
mod threads;
mod unavailable;
mod units;
mod wrapped_guards;
