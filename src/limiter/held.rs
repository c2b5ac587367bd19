use std::fmt;

use super::future::{LimiterFuture, both_ok};
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::HeldParts;

/// A cost that a limiter holds for a request whose actual cost is known later.
///
/// A held cost counts like a charged one: no other request gets it, and it does not drain. The guard ends the hold
/// once:
///
/// - [`settle`](Self::settle) charges the actual cost at the time of the call. The part above the held cost is a
///   *surcharge*: the limiter charges it even if it exceeds the limit.
/// - [`release`](Self::release) charges nothing.
/// - Dropping the guard settles the whole held cost.
///
/// A limit on requests [in flight](crate::InFlight) charges nothing: its part of the cost is held until the guard ends,
/// in either way.
///
/// # Custom limiters
///
/// A limiter of its own creates guards with [`new`](Self::new), or with [`until_end`](Self::until_end) for a limit on
/// requests in flight. A limiter around another one must return the guard of the limiter inside, because a guard can
/// hold more than [`cost`](Self::cost) says. [`map_settle`](Self::map_settle) changes how the guard settles, and keeps
/// the rest.
///
/// The limiter charges nothing before the actual cost is known, so it never refunds. If each request is placed at its
/// start, admissions stay within the bound of the [algorithm](crate::algorithm), except for surcharges.
///
/// Held tokens do not drain: with long holds, keep `burst >= rate * duration * estimate / actual`.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new(TokenBucket::new(Quota::per_minute(1000)));
///
/// let outcome = limiter.hold("alice", AcquireOptions::cost(400)).await?;
/// assert_eq!(outcome.decision.remaining(), Some(600));
/// let held = outcome.held.expect("400 of 1000 tokens are available");
/// held.settle(150).await?;
/// assert_eq!(limiter.peek("alice", AcquireOptions::default()).await?.remaining(), Some(850));
/// # Ok(())
/// # }
/// ```
///
/// # Tiers
///
/// If the algorithm is [selected by the key](crate::per_key), a hold is settled under the algorithm that was selected
/// when the hold began. If the tier of the key has changed since then to one with a longer period, the charge expires
/// as under the old tier. Usage that only the longer period still counted can expire with it, once for each such hold.
///
/// # Shared stores
///
/// In memory a hold ends with its guard. In Redis the process renews its holds in the background. If the process dies,
/// its holds expire, and Redis settles them whole.
///
/// # Cancellation
///
/// [`settle`](Self::settle) and [`release`](Self::release) take effect even if their future is dropped, as long as a
/// tokio runtime runs (feature `timer`).
#[must_use = "dropping the guard settles the whole held cost"]
pub struct Held {
    cost: u64,
    settle: Option<Settle>,
    parts: Option<Box<Parts>>,
}

type Settle = Box<dyn FnOnce(u64) -> LimiterFuture<()> + Send + Sync>;

/// The parts of a hold that end apart from the request's cost.
#[derive(Default)]
struct Parts {
    /// The fixed costs of limits, which a [provisional](AcquireOptions::provisional) hold includes.
    fixed: Option<Held>,
    /// What limits on requests in flight hold. It is never charged.
    until_end: Option<Held>,
}

impl Held {
    /// Creates a guard for a custom limiter. The guard calls `settle` once, with the actual cost.
    ///
    /// To wrap the guard of another limiter, use [`map_settle`](Self::map_settle): a new guard would hold less.
    pub fn new(cost: u64, settle: impl FnOnce(u64) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        Self { cost, settle: Some(Box::new(settle)), parts: None }
    }

    /// Creates the guard of fixed costs. The guard calls `end` once: with `true` to charge the costs.
    pub(crate) fn of_fixed_costs(end: impl FnOnce(bool) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        Self::new(1, move |actual| end(actual > 0))
    }

    /// Creates the guard of a cost that is held until the request ends, for a custom limit on requests in flight.
    ///
    /// The guard charges nothing. It calls `release` once: when it is settled, released or dropped. Return it only to
    /// callers that keep it ([`AcquireOptions::until_end`]).
    pub fn until_end(cost: u64, release: impl FnOnce() -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let until_end = Some(Self::new(cost, move |_| release()));
        Self { cost, settle: None, parts: Some(Box::new(Parts { fixed: None, until_end })) }
    }

    /// Replaces how the guard settles, and keeps everything else that it holds: for a limiter around another one.
    ///
    /// Instead of charging the actual cost, the guard calls `settle` once, with the guard of the cost that is settled
    /// and the actual cost. What other limits hold (requests [in flight](crate::InFlight), fixed costs) ends as before.
    /// A guard without a cost to settle never calls `settle`.
    ///
    /// ```
    /// use tower_ratelimit::limiter::{Acquisition, BoxFuture, Limiter, Outcome};
    /// use tower_ratelimit::{AcquireOptions, Error};
    ///
    /// /// Prints what requests cost.
    /// struct Printed<L>(L);
    ///
    /// impl<L: Limiter<str>> Limiter<str> for Printed<L> {
    ///     type Future = BoxFuture<Result<Outcome, Error>>;
    ///
    ///     fn acquire(&self, key: &str, options: AcquireOptions) -> Acquisition<Self::Future> {
    ///         let (acquired, key) = (self.0.acquire(key, options), key.to_owned());
    ///         Acquisition::Pending(Box::pin(async move {
    ///             let Outcome { decision, held } = acquired.await?;
    ///             let held = held.map(|held| {
    ///                 held.map_settle(move |held, actual| {
    ///                     println!("{key}: {actual}");
    ///                     held.settle(actual)
    ///                 })
    ///             });
    ///             Ok(Outcome { decision, held })
    ///         }))
    ///     }
    /// }
    /// ```
    pub fn map_settle(mut self, settle: impl FnOnce(Self, u64) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        let cost = self.cost;
        self.settle = self.settle.take().map(|inner| -> Settle {
            let inner = Self { cost, settle: Some(inner), parts: None };
            Box::new(move |actual| settle(inner, actual))
        });
        self
    }

    /// Returns which parts the guard holds apart from the cost that is settled.
    pub(crate) fn part_kinds(&self) -> HeldParts {
        self.parts.as_ref().map_or(HeldParts::NONE, |parts| HeldParts {
            fixed: parts.fixed.is_some(),
            until_end: parts.until_end.is_some(),
        })
    }

    /// Adds the guard of fixed costs.
    pub(crate) fn with_fixed_costs(mut self, fixed: Option<Self>) -> Self {
        self.parts = fixed.map(|fixed| Box::new(Parts { fixed: Some(fixed), until_end: None }));
        self
    }

    /// Charges the fixed costs: the request is admitted.
    pub(crate) fn charge_fixed_costs(&mut self) {
        drop(self.parts.as_mut().and_then(|parts| parts.fixed.take()));
    }

    /// Returns the guard of what is settled or charged, and the guard of what is held until the request ends.
    pub(crate) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let until_end = self.parts.as_mut().and_then(|parts| parts.until_end.take()).map(|until_end| Self {
            cost: until_end.cost,
            settle: None,
            parts: Some(Box::new(Parts { fixed: None, until_end: Some(until_end) })),
        });
        (self.settle.is_some().then_some(self), until_end)
    }

    /// Returns the held cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Ends the hold and charges `actual`.
    ///
    /// # Errors
    ///
    /// If the store cannot record the charge: the key table is full ([`WhenFull::Deny`](crate::WhenFull::Deny)), or
    /// Redis is unavailable.
    pub fn settle(mut self, actual: u64) -> LimiterFuture<()> {
        self.end(actual)
    }

    /// Ends the hold and charges nothing.
    ///
    /// # Errors
    ///
    /// As for [`settle`](Self::settle).
    pub fn release(mut self) -> LimiterFuture<()> {
        match self.parts.as_mut().and_then(|parts| parts.fixed.take()) {
            None => self.end(0),
            Some(fixed) => fixed.release().join(self.end(0)).map_result(both_ok),
        }
    }

    /// Joins two holds of one decision into one guard.
    pub(crate) fn join(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (mut first, mut second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return first.or(second),
        };
        let [of_first, of_second] =
            [first.parts.take(), second.parts.take()].map(|parts| parts.map_or_else(Parts::default, |parts| *parts));
        let parts = Parts {
            fixed: Self::join(of_first.fixed, of_second.fixed),
            until_end: Self::join(of_first.until_end, of_second.until_end),
        };
        let mut joined = match (first.settle.is_some(), second.settle.is_some()) {
            (true, true) => Self::new(first.cost.max(second.cost), move |actual| {
                first.settle(actual).join(second.settle(actual)).map_result(both_ok)
            }),
            // What is held until the end is never settled, so its cost is not part of the cost that is.
            (true, false) => first,
            (false, true) => second,
            (false, false) => {
                second.cost = first.cost.max(second.cost);
                second
            }
        };
        joined.parts = Some(Box::new(parts)).filter(|parts| parts.fixed.is_some() || parts.until_end.is_some());
        Some(joined)
    }

    fn end(&mut self, actual: u64) -> LimiterFuture<()> {
        let settle = self.settle.take();
        let until_end = self.parts.as_mut().and_then(|parts| parts.until_end.take());
        let settled = settle.map_or_else(|| LimiterFuture::ready(Ok(())), |settle| settle(actual).complete_on_drop());
        match until_end {
            None => settled,
            Some(mut until_end) => settled.join(until_end.end(0)).map_result(both_ok).complete_on_drop(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let cost = self.cost;
        self.end(cost).detach();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// A held cost that is released when dropped, unlike [`Held`], which settles the whole cost.
///
/// For a request that may still fail: if its future is dropped meanwhile, the request is not charged.
pub(crate) struct ReleaseOnDrop(Option<Held>);

impl ReleaseOnDrop {
    pub(crate) fn new(held: Option<Held>) -> Self {
        Self(held)
    }

    pub(crate) fn into_held(mut self) -> Option<Held> {
        self.0.take()
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.release().detach();
        }
    }
}
