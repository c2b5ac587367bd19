//! Tests for stores and algorithms of your own.
//!
//! [`check_algorithm`] checks the laws of an algorithm, and `check_lua_algorithm` (feature `redis`) compares its Lua
//! implementation in a Redis server.
//!
//! # Stores
//!
//! The decisions of a store are compared with the decisions of [`Memory`](crate::Memory).
//!
//! [`check_store`] runs them. It needs no test framework and no runtime of its own: call it in an `async` test with the
//! runtime that your store needs.
//!
//! | Part | The store is wrong if |
//! |---|---|
//! | traces: random limits, some with a guaranteed share, requests, operations and times, one call after another | a decision differs from `Memory`'s in any field |
//! | concurrent calls on one key and on several limits | more or less than the quota is allowed, or a denied call charges a limit |
//! | dropped calls | a call that was dropped charges more than its cost, or another call does not end |
//!
//! The calls run in one process. A store that many processes share needs a test with several processes as well: the
//! example `postgres` in the repository has one.
//!
//! ```
//! use std::collections::HashMap;
//! use std::future::ready;
//! use std::sync::Mutex;
//!
//! use tower_ratelimit::limiter::{LimiterFuture, Outcome};
//! use tower_ratelimit::store::StoreLimits;
//! use tower_ratelimit::test_util::{TestKey, check_store};
//! use tower_ratelimit::{AcquireOptions, Clock, Error, Limiter, ManualClock};
//!
//! struct MapStore {
//!     limits: StoreLimits<TestKey>,
//!     values: Mutex<HashMap<String, Vec<u8>>>,
//!     clock: ManualClock,
//! }
//!
//! impl Limiter<TestKey> for MapStore {
//!     fn acquire(&self, key: &TestKey, options: AcquireOptions) -> LimiterFuture<Outcome> {
//!         let decide = || {
//!             let transaction = self.limits.transaction(key, options)?;
//!             let mut values = self.values.lock().unwrap();
//!             let states: Vec<_> = transaction.keys().iter().map(|key| values.get(key)).collect();
//!             let (decision, writes) = transaction.decide(&states, self.clock.now())?;
//!             for (key, write) in transaction.keys().iter().zip(writes) {
//!                 values.extend(write.map(|write| (key.clone(), write.state)));
//!             }
//!             Ok(decision.into())
//!         };
//!         LimiterFuture::ready(decide())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = check_store(|limits, clock| ready(Ok(MapStore { limits, values: Mutex::default(), clock }))).await;
//! assert!(report.expect("the store decides as `Memory`").allowed > 1_000);
//! # }
//! ```

mod algorithm;
mod concurrency;
#[cfg(feature = "redis")]
mod lua_algorithm;
mod shares;
mod traces;

pub use self::algorithm::{AlgorithmReport, check_algorithm};
#[cfg(feature = "redis")]
pub use self::lua_algorithm::check_lua_algorithm;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::response::BoxError;
use crate::store::StoreLimits;
use std::future::Future;

use crate::clock::ManualClock;
use crate::random::Random;

/// The key of the limits that [`check_store`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TestKey {
    /// A part by which limits count.
    pub user: u64,
    /// A part by which limits count.
    pub team: u64,
    /// The part that selects the algorithm.
    pub tier: usize,
}

/// What [`check_store`] has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreReport {
    /// The calls that were allowed now.
    pub allowed: u64,
    /// The calls that were allowed after a delay.
    pub delayed: u64,
    /// The calls that were denied.
    pub denied: u64,
    /// The calls that borrowed, because their guaranteed share did not allow them.
    pub borrowed: u64,
    /// The calls of [`Limiter::peek`]: zero if the store does not support it.
    pub peeks: u64,
    /// The calls of [`Limiter::administer`]: zero if the store does not support it.
    pub operations: u64,
}

/// Checks a store of your own: the table [above](self) lists the parts.
///
/// `make` makes a limiter from limits and a clock, some fifty times. The limiter must be without any state: choose a name,
/// a table or a prefix for each. It must decide at the time of the clock instead of the server's time; times begin in the
/// year 1970. Each run makes the same calls.
///
/// # Errors
///
/// Returns the first difference from [`Memory`](crate::Memory), with the limits and the calls that lead to it, or the first
/// error of the store.
pub async fn check_store<L, F>(
    mut make: impl FnMut(StoreLimits<TestKey>, ManualClock) -> F,
) -> Result<StoreReport, BoxError>
where
    L: Limiter<TestKey>,
    F: Future<Output = Result<L, Error>>,
{
    let mut make = async |limits, clock| make(limits, clock).await;
    let mut report = StoreReport::default();
    for seed in 0..traces::TRACES {
        let trace = traces::Trace::new(seed)?;
        let limiter = make(trace.store_limits()?, trace.clock()).await?;
        trace.run(&limiter, &mut report).await?;
    }
    for seed in 0..concurrency::ROUNDS {
        concurrency::check_one_limit(&mut make, &mut Random::new(seed), &mut report).await?;
        concurrency::check_two_limits(&mut make, &mut Random::new(seed), &mut report).await?;
        concurrency::check_dropped_calls(&mut make, seed).await?;
    }
    Ok(report)
}
