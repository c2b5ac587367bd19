use super::pair::{options_for_both, then};
use super::{AdminOperation, Held, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::decision::{AcquireOptions, Decision, DecisionSource};

/// A limiter that uses a secondary limiter while the store of its primary limiter is unavailable.
///
/// Typically the primary limiter is in Redis and the secondary in [`Memory`](crate::Memory). Divide the quota of the
/// secondary by the number of processes, so that all processes together stay near the shared limit.
///
/// If the primary limiter returns an error for which [`is_unavailable`](crate::Error::is_unavailable) holds, the secondary
/// limiter decides. The source of its decisions is [`DecisionSource::Fallback`](crate::DecisionSource::Fallback). The
/// two limiters do not share usage: after an outage a key may have used up to the sum of both limits.
///
/// Costs in [units](crate::Limit::cost_of) may name the units of both limiters. Each limiter charges those that its limits
/// name.
///
/// `set_usage`, `block` and `reset` run on both limiters and return the result of the primary.
///
/// ```
/// use tower_ratelimit::limiter::Fallback;
/// use tower_ratelimit::{FixedWindow, Memory, Quota};
/// # #[cfg(feature = "redis")]
/// # fn f() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{Redis, RedisServer};
///
/// const PROCESSES: u64 = 4;
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let shared = Redis::<str>::new(server, "api", FixedWindow::new(Quota::per_minute(1000)));
/// let local = Memory::<str, _>::new(FixedWindow::new(Quota::per_minute(1000 / PROCESSES)));
/// let limiter = Fallback::new(shared, local);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Fallback<P, S> {
    primary: P,
    secondary: S,
}

impl<P, S> Fallback<P, S> {
    /// Creates a limiter that asks `secondary` while `primary` is unavailable.
    pub const fn new(primary: P, secondary: S) -> Self {
        Self { primary, secondary }
    }

    /// Asks the primary limiter, and the secondary one if the primary is unavailable.
    fn decide<Key, T>(
        &self,
        key: &Key,
        options: AcquireOptions,
        primary: impl FnOnce(&P, &Key, AcquireOptions) -> LimiterFuture<T>,
        secondary: impl FnOnce(&S, &Key, AcquireOptions) -> LimiterFuture<T> + Send + 'static,
        mark: fn(T) -> T,
    ) -> LimiterFuture<T>
    where
        Key: ToOwned + ?Sized + 'static,
        Key::Owned: Send + 'static,
        P: Limiter<Key>,
        S: Limiter<Key> + Clone,
        T: Send + 'static,
    {
        let options = options_for_both("`Fallback`", &self.primary, &self.secondary, key, options);
        LimiterFuture::of_result(options.map(|options| {
            then(primary(&self.primary, key, options), &self.secondary, key, move |limiter, key, decided| match decided
            {
                Err(error) if error.is_unavailable() => secondary(limiter, key, options).map(mark),
                result => LimiterFuture::ready(result),
            })
        }))
    }
}

impl<Key, P, S> Limiter<Key> for Fallback<P, S>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    P: Limiter<Key> + 'static,
    S: Limiter<Key> + Clone,
{
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let decided = self.decide(key, options, P::acquire, S::acquire, |outcome| Outcome {
            decision: mark_fallback(outcome.decision),
            ..outcome
        });
        if !options.hold {
            return decided;
        }
        // The guard of one limiter can be settled in the units of the other.
        let mut units = Vec::new();
        self.limits_of(key, &mut LimitsOfKey::units(&mut |unit| units.push(unit)));
        let with_units = move |held: Held| held.with_units(options.costs(), |visit| units.into_iter().for_each(visit));
        decided.map(move |outcome| Outcome { held: outcome.held.map(with_units), ..outcome })
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.decide(key, options, P::peek, S::peek, mark_fallback)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.primary.limits_of(key, limits);
        self.secondary.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        if let AdminOperation::Settle { .. } = operation {
            return LimiterFuture::unsupported("settling failed: `Fallback` does not support reservation ids");
        }
        self.secondary.administer(key, operation).detach();
        self.primary.administer(key, operation)
    }
}

/// A decision that no limit has made stays one.
fn mark_fallback(decision: Decision) -> Decision {
    if decision.source() == DecisionSource::NoLimit { decision } else { decision.with_source(DecisionSource::Fallback) }
}
