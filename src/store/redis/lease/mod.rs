//! Leases: this process holds units of a quota, and spends them without a round trip.
//!
//! A lease is a hold of many units on one key of one limit. Redis holds them (`lease.lua`), so they count against everybody, but
//! charges nothing. Decisions spend them by one atomic operation ([`slot`]). A report in the background tells Redis what
//! was spent, and only that is charged. The rest stays held, is released, or is charged whole when the hold expires.
//!
//! This order makes the bound exact: each unit is held from its grant until it is charged, and charged after it was
//! spent. If it were charged at its grant, it would drain while the process keeps it, and more would be admitted than
//! the algorithm allows. The process stops spending shortly before the expiry, by its own monotonic clock, counted from
//! before the report was sent.
//!
//! | Module | Responsibility |
//! |---|---|
//! | `ledger` | the accounts of one lease: pure transitions |
//! | `slot` | the units of one lease, spent by atomic operations |
//! | `quota` | the quota of a key at one limit |
//! | `held_lease` | one lease: when it reports, and how much it wants |
//! | `book` | the leases of a limiter, in a table of fixed size |
//! | `spending` | decisions by the leases of all limits |
//! | `demand` | which keys get leases: those with enough demand for costs that leases can serve |
//! | `task` | the background task that sends reports, and a report that was sent |

mod book;
mod config;
mod demand;
#[cfg(test)]
mod demand_tests;
#[cfg(test)]
mod exactness_tests;
mod held_lease;
mod ledger;
mod quota;
#[cfg(test)]
pub(super) mod server_model;
mod slot;
mod spending;
mod task;

pub(crate) use self::book::LeaseBook;
pub use self::config::Lease;
pub(crate) use self::config::LeaseClock;
pub(crate) use self::ledger::LeaseReply;
pub(crate) use self::spending::{LeasePart, first};
pub(crate) use self::task::{LeaseRenewal, LeaseTransport};
