use std::future::{Future, IntoFuture};

use super::future::LimiterFuture;
use super::held::Held;
use super::{Limiter, Outcome};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;

/// A [hold](Held) for something whose cost is counted while it runs: a stream, a job, a call that is paid by tokens.
///
/// [`reserve`](Self::reserve) holds an estimate. [`spend`](Self::spend) counts what is used, and [`settle`](Self::settle)
/// ends it. **Dropping it settles at what was spent until then**: a cancelled stream pays what it used, and one that never
/// began pays nothing. What was spent beyond the reservation is charged without asking.
///
/// ```
/// use tower_ratelimit::limiter::Reservation;
/// use tower_ratelimit::{AcquireOptions, Limiter, Memory, Quota, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new(TokenBucket::new(Quota::per_minute(1000)));
///
/// let (reservation, _decision) = Reservation::reserve(&limiter, "alice", AcquireOptions::cost(400)).await?;
/// let mut reservation = reservation.expect("400 of 1000 tokens are available");
/// reservation.spend(100);
/// reservation.spend(50);
/// drop(reservation);
///
/// assert_eq!(limiter.peek("alice", AcquireOptions::default()).await?.remaining(), Some(850));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a reservation at once releases all of it"]
pub struct Reservation {
    held: Option<Held>,
    spent: u64,
}

impl Reservation {
    /// Holds the cost, if the limiter allows it.
    ///
    /// Returns the decision with it, and alone if it is a denial. A limiter that allowed the request without holding
    /// anything, as [`FailOpen`](super::FailOpen) does while its store is unavailable, returns a reservation that settles
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the limiter could not decide.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped while the limiter decides, the limiter says what stays charged.
    pub fn reserve<Key: ?Sized, L: Limiter<Key>>(
        limiter: &L,
        key: &Key,
        ask: AcquireOptions,
    ) -> impl Future<Output = Result<(Option<Self>, Decision), Error>> + Send + use<Key, L> {
        let acquired = limiter.hold(key, ask).into_future();
        async move {
            let Outcome { decision, held } = acquired.await?;
            let reservation = decision.is_allowed().then_some(Self { held, spent: 0 });
            Ok((reservation, decision))
        }
    }

    /// The held cost.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.held.as_ref().map_or(0, Held::cost)
    }

    /// What was spent until now.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Counts what has been used. It may come to more than was reserved.
    pub fn spend(&mut self, amount: u64) {
        self.spent = self.spent.saturating_add(amount);
    }

    /// Ends it and charges `actual`, whatever was spent.
    ///
    /// # Errors
    ///
    /// As for [`Held::settle`].
    pub fn settle(mut self, actual: u64) -> LimiterFuture<()> {
        self.end(actual)
    }

    fn end(&mut self, actual: u64) -> LimiterFuture<()> {
        self.held.take().map_or_else(|| LimiterFuture::ready(Ok(())), |held| held.settle(actual))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end(self.spent).detach();
    }
}
