use std::future::Future;

use super::future::LimiterFuture;
use super::held::Held;
use super::{Limiter, Outcome};
use crate::decision::{AcquireOptions, Costs, Decision};
use crate::error::Error;

/// A [hold](Held) for work whose cost is counted while it runs: a stream, a job, a call that is paid by tokens.
///
/// [`reserve`](Self::reserve) holds an estimate. [`spend`](Self::spend) counts usage, and [`settle`](Self::settle) ends
/// the reservation. **Dropping a reservation settles what was spent until then**: a cancelled stream is charged for
/// what it used, and a stream that never began is charged nothing. Usage beyond the reserved cost is a surcharge: the
/// limiter charges it even if it exceeds the limit.
///
/// A [`Held`] guard charges the whole cost when it is dropped, because a request whose cost is unknown must not be free. A
/// reservation knows what was spent, so it charges that.
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
#[must_use = "dropping a reservation settles what was spent until then"]
pub struct Reservation {
    held: Option<Held>,
    spent: Costs,
}

impl Reservation {
    /// Holds the cost, if the limiter allows it.
    ///
    /// Returns the decision, and a reservation if the decision allows the request. A limiter may allow a request
    /// without holding its cost, as [`FailOpen`](super::FailOpen) does while its store is unavailable. The reservation
    /// then settles nothing.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide, or cannot hold a cost, or if the options have an [id](AcquireOptions::id): a hold with
    /// an id has no guard.
    ///
    /// # Cancellation
    ///
    /// [`Redis`](crate::store) releases what it has held for a future that is dropped before it completes. Other
    /// limiters may differ.
    pub fn reserve<Key: ?Sized, L: Limiter<Key>, O: Into<AcquireOptions>>(
        limiter: &L,
        key: &Key,
        options: O,
    ) -> impl Future<Output = Result<(Option<Self>, Decision), Error>> + Send + use<Key, L, O> {
        let options = options.into();
        // With units, a limit that names none counts requests: it charges what it has held, unless a number is spent.
        let spent = if options.units.is_none() { Costs::from(0) } else { Costs::new() };
        let options = options.hold();
        let acquired = options.check_no_id("`Reservation`").map(|()| limiter.acquire(key, options));
        async move {
            let Outcome { decision, held } = acquired?.await?.check_guard(true)?;
            let reservation = decision.is_allowed().then_some(Self { held, spent });
            Ok((reservation, decision))
        }
    }

    /// Returns the held cost of limits that name no unit.
    pub fn reserved(&self) -> u64 {
        self.held.as_ref().map_or(0, Held::cost)
    }

    /// Returns the amount spent until now, apart from the [units](Self::spent_costs).
    pub fn spent(&self) -> u64 {
        self.spent.number().unwrap_or(0)
    }

    /// Returns the costs spent until now.
    pub fn spent_costs(&self) -> Costs {
        self.spent
    }

    /// Adds `amount` to the amount spent, which may exceed the reserved cost: a number, or [`Costs`] in units.
    ///
    /// If the reservation has units, limits without a unit charge what they have held, unless a number is spent.
    pub fn spend(&mut self, amount: impl Into<Costs>) {
        self.spent = self.spent.plus(amount.into());
    }

    /// Ends the reservation and charges `actual` instead of the amount spent.
    ///
    /// # Errors
    ///
    /// As for [`Held::settle`].
    pub fn settle(mut self, actual: impl Into<Costs>) -> LimiterFuture<()> {
        self.end(actual.into())
    }

    fn end(&mut self, actual: Costs) -> LimiterFuture<()> {
        self.held.take().map_or_else(|| LimiterFuture::ready(Ok(())), |held| held.settle(actual))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end(self.spent).detach();
    }
}
