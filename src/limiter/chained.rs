use std::time::Duration;

use super::held::{Held, ReleaseOnDrop};
use super::pair::{options_for_both, then};
use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::decision::{AcquireOptions, Decision, Detail};
use crate::error::Error;

/// Two limiters that must both allow a request, for limits that one store cannot decide together.
///
/// The first limiter [holds](Held) the cost, the second decides, and then the held cost is charged or released. Use
/// this for limits whose keys cannot share a cluster slot ("per user, and in total"), and for limits in different
/// stores. If one limiter can decide all limits, prefer that limiter: it decides atomically, in one round trip.
///
/// ```
/// use tower_ratelimit::limiter::Chained;
/// # #[cfg(feature = "redis-cluster")]
/// # fn f() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{Gcra, Limit, Quota, Redis, RedisServer};
///
/// let cluster = RedisServer::cluster(["redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])?;
/// // One key for each user, spread over all nodes.
/// let user = Redis::<u64>::new(cluster.clone(), "user", Limit::new("user", Gcra::new(Quota::per_second(10))));
/// // One key, on one node.
/// let all = Limit::new("all", Gcra::new(Quota::per_second(5000))).keyed_by(|_: &u64| ());
/// let limiter = Chained::new(user, Redis::new(cluster, "all", all));
/// # Ok(())
/// # }
/// ```
///
/// **Put the limiter whose keys the fewest requests share first**, and the limiter that all requests share last. A key
/// that its own limit denies then never holds tokens of the shared limit. Add further limiters with [`and`](Self::and),
/// or nest `Chained`s. Give the limits different names, because decisions and response headers list them together.
///
/// # Decisions
///
/// For requests one after the other, a chain decides as one limiter with all limits would, and its decisions list the
/// same limits. This also holds for nested `Chained`s. A request is allowed if both limiters allow it. A denial charges
/// nothing, and its wait is exact for both: after a denial by one limiter, the other is [peeked](Limiter::peek) at. If
/// that peek fails, the wait is the wait of the limiter that denied. If a limiter returns an error, neither is charged,
/// and the error is returned.
///
/// Concurrent requests see these differences from one limiter:
///
/// - **Held costs count.** While the second limiter decides, the first limit counts the request as if it had passed.
///   Other requests may be denied that one limiter would have allowed. **A limit is never exceeded.**
/// - **No scheduled starts.** Each limiter is asked for tokens that are available now, even if the caller accepts a
///   delay. A [`LeakyQueue`](crate::LeakyQueue) then denies until the start, and a waiting request asks again at that
///   time.
/// - **More latency**: one round trip for each limiter, and one more after a denial. Each is bounded by the deadline of
///   its limiter.
///
/// # Caching denials
///
/// Put a [`DeniedCache`](super::DeniedCache) around the chain, not around its limiters. While the cache remembers a
/// denial, it asks neither limiter, so the first limiter holds nothing.
///
/// # Process exit
///
/// In memory, holds end with the process. In Redis, the held cost expires and is settled whole. The first limiter must
/// be able to hold: [`RedisCell`](crate::RedisCell) cannot, so put it last.
///
/// # Cancellation
///
/// If the future is dropped, the cost that the first limiter holds is released in the background. Whether the second
/// limiter charges a decision that is dropped depends on that limiter.
///
/// # Administrative operations
///
/// [`reset`](Self::reset) runs on both limiters concurrently, and returns an error if one of them fails.
/// [`set_usage`](Self::set_usage) and [`block`](Self::block) run on the first limiter that
/// has a limit of that name.
#[derive(Clone, Debug)]
pub struct Chained<A, B> {
    first: A,
    second: B,
}

impl<A, B> Chained<A, B> {
    /// Creates a limiter that asks `first`, and then `second`.
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }

    /// Adds a limiter that is asked after the others.
    pub fn and<C>(self, last: C) -> Chained<Self, C> {
        Chained::new(self, last)
    }
}

impl<A, B> Chained<A, B> {
    #[inline]
    fn checked<Key: ?Sized>(&self, key: &Key, options: AcquireOptions) -> Result<AcquireOptions, Error>
    where
        A: Limiter<Key>,
        B: Limiter<Key>,
    {
        let options = options_for_both("`Chained`", &self.first, &self.second, key, options)?;
        Ok(options.max_delay(Duration::ZERO))
    }

    fn after_first<Key>(
        &self,
        key: &Key,
        options: AcquireOptions,
        first: Result<Outcome, Error>,
    ) -> LimiterFuture<Outcome>
    where
        Key: ToOwned + ?Sized + 'static,
        Key::Owned: Send + 'static,
        A: Limiter<Key> + Clone,
        B: Limiter<Key> + Clone,
    {
        let Outcome { decision, held } = match first.and_then(|first| first.check_guard(true)) {
            Ok(first) if first.decision.is_allowed() => first,
            Ok(Outcome { decision: denied, .. }) => {
                let second = self.second.peek(key, peek_options(options));
                return second.map_result(move |second| Ok(merge_decisions(options, Some(denied), second.ok()).into()));
            }
            Err(error) => return LimiterFuture::ready(Err(error)),
        };
        // Before the guard: a panic of the second limiter settles the hold.
        let second = self.second.acquire(key, options);
        let held = ReleaseOnDrop::new(held);
        then(second, self, key, move |this, key, second| {
            this.after_second(key, options, decision, held.into_held(), second)
        })
    }

    fn after_second<Key: ?Sized>(
        &self,
        key: &Key,
        options: AcquireOptions,
        first: Decision,
        held: Option<Held>,
        second: Result<Outcome, Error>,
    ) -> LimiterFuture<Outcome>
    where
        A: Limiter<Key>,
    {
        match second.and_then(|second| second.check_guard(true)) {
            Ok(second) if second.decision.is_allowed() => {
                let decision = merge_decisions(options, Some(first), Some(second.decision));
                let held = if options.hold {
                    held
                } else {
                    // Dropping the rest charges the whole held cost in the background. The held cost counts until then,
                    // so nothing waits for that.
                    held.and_then(|held| held.split().1)
                };
                let mut held = Held::join(held, second.held);
                // In a chain inside another chain, a further limiter may still deny.
                if let Some(held) = held.as_mut().filter(|_| !options.holds_fixed_costs) {
                    held.charge_fixed_costs();
                }
                LimiterFuture::ready(Ok(Outcome::of_store(decision, held)))
            }
            Ok(Outcome { decision: denied, .. }) => {
                // Releases before it peeks, so that the first limiter returns the numbers of a key that was not charged.
                let released = release(held);
                let joined = released.join(self.first.peek(key, peek_options(options)));
                joined.map_result(move |joined| Ok(merge_decisions(options, joined?.1.ok(), Some(denied)).into()))
            }
            Err(error) => release(held).map_result(|_| Err(error)),
        }
    }
}

/// Releases a held cost. Callers ignore an error: the hold then expires in the store, and the decision is the same.
fn release(held: Option<Held>) -> LimiterFuture<()> {
    held.map_or_else(|| LimiterFuture::ready(Ok(())), Held::release)
}

/// Merges the decisions of both limiters. A limiter whose peek failed has none.
fn merge_decisions(options: AcquireOptions, first: Option<Decision>, second: Option<Decision>) -> Decision {
    let parts: Vec<Decision> = first.into_iter().chain(second).collect();
    Decision::merge(options, &parts)
}

/// Returns the options of a peek whose decision is merged with another limiter's decision.
///
/// Whether all limits are listed depends on both decisions, so the peek lists all of its limits.
fn peek_options(options: AcquireOptions) -> AcquireOptions {
    match options.detail {
        Detail::MostRestrictive => options,
        _ => options.detail(Detail::All),
    }
}

impl<Key, A, B> Limiter<Key> for Chained<A, B>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    A: Limiter<Key> + Clone,
    B: Limiter<Key> + Clone,
{
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::of_result(self.checked(key, options).map(|options| {
            // Fixed costs stay held, too, until the second limiter has decided.
            let first = self.first.acquire(key, options.hold_all_costs());
            then(first, self, key, move |this, key, first| this.after_first(key, options, first))
        }))
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        LimiterFuture::of_result(self.checked(key, options).map(|options| {
            let of_part = peek_options(options);
            let joined = self.first.peek(key, of_part).join(self.second.peek(key, of_part));
            joined.map_result(move |joined| {
                let (first, second) = joined?;
                Ok(merge_decisions(options, Some(first?), Some(second?)))
            })
        }))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.first.limits_of(key, limits);
        self.second.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        match operation {
            AdminOperation::Settle { .. } => {
                LimiterFuture::unsupported("settling failed: `Chained` does not support reservation ids")
            }
            AdminOperation::Reset => self.first.administer(key, operation).and(self.second.administer(key, operation)),
            AdminOperation::SetUsage { limit, .. } | AdminOperation::Block { limit, .. } => {
                let (unnamed, limit) = (operation.on_limit(""), limit.to_owned());
                then(self.first.administer(key, operation), &self.second, key, move |second, key, first| match first {
                    // The first limiter has no limit of this name, or no such operation.
                    Err(error) if error.is_misconfigured() => second.administer(key, unnamed.on_limit(&limit)),
                    result => LimiterFuture::ready(result),
                })
            }
        }
    }
}
