//! The in-memory store and the limiters that are built from other limiters.

mod admin;
mod chained;
mod check_in_flight;
mod costs;
mod denied_cache;
mod estimates;
mod eviction;
mod fixed_costs;
mod full_tables;
mod holds;
mod in_flight;
mod linearizability;
mod overdue;
mod races;
mod random;
mod scheduling;
mod stale_clock;
mod stepping_clocks;
mod threads;
mod unavailable;
mod wrapped_guards;
