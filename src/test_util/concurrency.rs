//! Concurrent calls, and calls that are dropped.

use std::future::{Future as _, poll_fn};
use std::iter;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::traces::{acquire, count};
use super::{StoreReport, TestKey};
use crate::algorithm::{FixedWindow, Gcra};
use crate::clock::ManualClock;
use crate::decision::{AcquireOptions, Decision, Detail};
use crate::error::Error;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::quota::Quota;
use crate::random::Random;
use crate::response::BoxError;
use crate::store::StoreLimits;

/// How many limiters each law is checked with.
pub(super) const ROUNDS: u64 = 4;

/// The threads that call a limiter whose decisions are immediate.
const THREADS: usize = 4;

/// Concurrent calls with one limit admit exactly the quota, in each of several periods.
pub(super) async fn check_one_limit<L: Limiter<TestKey>>(
    make: &mut impl AsyncFnMut(StoreLimits<TestKey>, ManualClock) -> Result<L, Error>,
    random: &mut Random,
    report: &mut StoreReport,
) -> Result<(), BoxError> {
    let (quota, clock) = (5 + random.below(20), ManualClock::new());
    let limit =
        Limit::new("one", Gcra::new(Quota::new(quota, Duration::from_secs(10)))).keyed_by(|key: &TestKey| key.user);
    let limiter = make(StoreLimits::new(limit)?, clock.clone()).await?;
    for period in 0..3 {
        let decisions = acquire_all(&limiter, &vec![KEY; 40]).await?;
        for decision in &decisions {
            count(decision, report);
        }
        let allowed = count_allowed(&decisions);
        if allowed != quota {
            return Err(format!(
                "concurrent calls are not atomic: 40 concurrent calls on one key with a quota of {quota} in ten seconds \
                 and a burst of {quota} were allowed {allowed} times in period {period}; compare and swap the state"
            ).into());
        }
        clock.advance(Duration::from_secs(10));
    }
    Ok(())
}

const KEY: TestKey = TestKey { user: 0, team: 0, tier: 0 };

/// Concurrent calls with two limits, of which the second is shared: all limits are charged for an allowed call, and none
/// for a denied one.
pub(super) async fn check_two_limits<L: Limiter<TestKey>>(
    make: &mut impl AsyncFnMut(StoreLimits<TestKey>, ManualClock) -> Result<L, Error>,
    random: &mut Random,
    report: &mut StoreReport,
) -> Result<(), BoxError> {
    let (each, all) = (6 + random.below(6), 14 + random.below(20));
    let window = |limit| FixedWindow::new(Quota::new(limit, Duration::from_secs(60)));
    let limits = (
        Limit::new("user", window(each)).keyed_by(|key: &TestKey| key.user),
        Limit::new("all", window(all)).keyed_by(|_: &TestKey| ()),
    );
    let limiter = make(StoreLimits::new(limits)?, ManualClock::new()).await?;
    let keys: Vec<_> = (0..48).map(|index| TestKey { user: index % 4, ..KEY }).collect();
    let decisions = acquire_all(&limiter, &keys).await?;
    for decision in &decisions {
        count(decision, report);
    }
    let allowed_of = |user| {
        let decisions = keys.iter().zip(&decisions).filter(|(key, _)| key.user == user);
        count_allowed(decisions.map(|(_, decision)| decision))
    };
    let allowed: Vec<_> = (0..4).map(allowed_of).collect();
    let (total, expected) = (allowed.iter().sum::<u64>(), all.min(4 * each));
    let mut wrong = total != expected || allowed.iter().any(|allowed| *allowed > each);
    let mut used = Vec::new();
    for user in 0..4 {
        let look = AcquireOptions::cost(0).detail(Detail::All);
        let decision = acquire(&limiter, &TestKey { user, ..KEY }, look).await?;
        let remaining: Vec<_> = decision.limits().iter().map(crate::LimitStatus::remaining).collect();
        wrong |= remaining != [each.saturating_sub(allowed_of(user)), all.saturating_sub(total)];
        used.push(remaining);
    }
    if wrong {
        return Err(format!(
            "limits are not charged together: 48 concurrent calls of four keys, with {each} for each key and {all} for \
             all of them, were allowed {allowed:?} times instead of {expected} times in total, and {used:?} remain; \
             write the states of all limits or none"
        )
        .into());
    }
    Ok(())
}

/// A call that is dropped after its first step charges its cost or nothing, and blocks no other call.
pub(super) async fn check_dropped_calls<L: Limiter<TestKey>>(
    make: &mut impl AsyncFnMut(StoreLimits<TestKey>, ManualClock) -> Result<L, Error>,
    seed: u64,
) -> Result<(), BoxError> {
    const QUOTA: u64 = 100;
    let quota = Quota::new(QUOTA, Duration::from_secs(60));
    let limit = Limit::new("one", FixedWindow::new(quota)).keyed_by(|key: &TestKey| key.user);
    let limiter = make(StoreLimits::new(limit)?, ManualClock::new()).await?;
    let mut dropped = 0;
    for _ in 0..10 + seed {
        if let Err(future) = limiter.acquire(&KEY, AcquireOptions::default()).try_ready() {
            let mut future = Box::pin(future);
            poll_fn(|cx| {
                // The call ends here or is dropped: its decision counts as if the call had been dropped.
                let _ = future.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
            dropped += 1;
        }
    }
    let allowed = count_allowed(&acquire_all(&limiter, &vec![KEY; 120]).await?);
    if dropped > 0 && !(QUOTA - dropped..=QUOTA).contains(&allowed) {
        return Err(format!(
            "dropped calls are charged wrongly: after {dropped} dropped calls, {allowed} of a quota of {QUOTA} were \
             allowed; a dropped call may be charged once or not at all"
        )
        .into());
    }
    Ok(())
}

fn count_allowed<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> u64 {
    decisions.into_iter().map(|decision| u64::from(decision.is_allowed())).sum()
}

/// Acquires one for each key, at the same time. Returns the decisions in the order of the keys.
async fn acquire_all<L: Limiter<TestKey>>(limiter: &L, keys: &[TestKey]) -> Result<Vec<Decision>, Error> {
    let (first, rest) = keys.split_first().ok_or_else(|| Error::config("no keys"))?;
    match limiter.acquire(first, AcquireOptions::default()).try_ready() {
        Ok(outcome) => {
            let mut decisions = vec![outcome?.decision];
            decisions.extend(acquire_on_threads(limiter, rest)?);
            Ok(decisions)
        }
        Err(future) => {
            let first = async { future.await.map(|outcome| outcome.decision) };
            let rest = join_all(rest.iter().map(|key| acquire(limiter, key, AcquireOptions::default())));
            let (first, rest) = join(first, rest).await;
            iter::once(first).chain(rest).collect()
        }
    }
}

/// Acquires on several threads: the decisions are immediate.
fn acquire_on_threads<L: Limiter<TestKey>>(limiter: &L, keys: &[TestKey]) -> Result<Vec<Decision>, Error> {
    let acquire = |key| match limiter.acquire(key, AcquireOptions::default()).try_ready() {
        Ok(outcome) => outcome.map(|outcome| outcome.decision),
        Err(_) => Err(Error::unsupported("checking the store failed: some decisions are immediate and some are not")),
    };
    std::thread::scope(|scope| {
        let parts = keys.chunks(keys.len().div_ceil(THREADS).max(1));
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().map(acquire).collect::<Result<Vec<_>, _>>())).collect();
        let mut decisions = Vec::new();
        for thread in threads {
            let panicked = || Error::unavailable("checking the store failed: the store has panicked");
            decisions.extend(thread.join().map_err(|_| panicked())??);
        }
        Ok(decisions)
    })
}
