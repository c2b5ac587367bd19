use std::fmt;

use super::future::LimiterFuture;

/// A cost that a limiter holds for a request whose actual cost is known later.
///
/// A held cost counts like a charged one: nobody else gets it, and it does not drain. The guard ends the hold once:
///
/// - [`settle`](Self::settle) charges the actual cost at the time of the call. If that is more than was held, the rest is a
///   *surcharge*: the limiter charges it without asking.
/// - [`release`](Self::release) charges nothing.
/// - Dropping the guard settles the whole held cost.
///
/// As nothing is charged before its actual cost is known, nothing is ever refunded. With each request placed at its start,
/// admissions stay within the bound of the [algorithm](crate::algorithm), surcharges apart.
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
/// Where the algorithm is [chosen by the key](crate::per_key), the hold is settled under the algorithm that was chosen when it
/// was made. If the key's tier has changed since to one with a longer period, that charge counts, and drops, as under the old
/// tier, and usage that only the longer period still counted can be dropped with it: once for each such hold.
///
/// # Shared stores
///
/// In memory a hold ends with its guard. In Redis the process renews its holds in the background; if the process dies, they
/// expire and are settled whole.
///
/// # Cancellation
///
/// [`settle`](Self::settle) and [`release`](Self::release) do their work even if their reply is dropped, as long as a tokio
/// runtime runs (feature `timer`).
#[must_use = "dropping the guard settles the whole held cost"]
pub struct Held {
    cost: u64,
    settle: Option<Box<dyn FnOnce(u64) -> LimiterFuture<()> + Send + Sync>>,
}

impl Held {
    /// A guard for a limiter of your own: it calls `settle` once, with the actual cost.
    pub fn new(cost: u64, settle: impl FnOnce(u64) -> LimiterFuture<()> + Send + Sync + 'static) -> Self {
        Self { cost, settle: Some(Box::new(settle)) }
    }

    /// The held cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Ends the hold and charges `actual`.
    ///
    /// # Errors
    ///
    /// If the store cannot record it: a full table ([`WhenFull::Deny`](crate::WhenFull::Deny)), or Redis is unavailable.
    pub fn settle(mut self, actual: u64) -> LimiterFuture<()> {
        self.end(actual)
    }

    /// Ends the hold and charges nothing.
    ///
    /// # Errors
    ///
    /// As for [`settle`](Self::settle).
    pub fn release(self) -> LimiterFuture<()> {
        self.settle(0)
    }

    /// One guard for two holds of one decision.
    pub(crate) fn join(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(first), Some(second)) => {
                let cost = first.cost.max(second.cost);
                Some(Self::new(cost, move |actual| {
                    first.settle(actual).with(second.settle(actual)).then(|both| {
                        let (first, second) = both?;
                        first.and(second)
                    })
                }))
            }
            (first, second) => first.or(second),
        }
    }

    fn end(&mut self, actual: u64) -> LimiterFuture<()> {
        self.settle.take().map_or_else(|| LimiterFuture::ready(Ok(())), |settle| settle(actual).complete_on_drop())
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
