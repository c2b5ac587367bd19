use std::fmt;

use super::reply::Reply;
use super::seam::{Limiter, Receipt};
use crate::decision::{Ask, Decision};
use crate::error::Error;

/// A charge made beforehand for something whose cost is known afterwards: a stream, a job, a call that is paid by tokens.
///
/// [`reserve`](Self::reserve) charges an estimate. [`spend`](Self::spend) counts what is used as it is used, and
/// [`settle`](Self::settle) ends it. **Dropping it settles at what was spent until then**: a stream that is cancelled pays
/// what it used, one that never began pays nothing. What was reserved and not used is given back as far as it still counts;
/// what was used beyond the reservation is charged, allowed or not.
///
/// ```
/// use tower_ratelimit::limiter::Reservation;
/// use tower_ratelimit::{Ask, Limiter, Memory, Quota, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new(TokenBucket::new(Quota::per_minute(1000)));
///
/// let (reservation, _decision) = Reservation::reserve(limiter.clone(), "alice", Ask::cost(400)).await?;
/// let mut reservation = reservation.expect("400 of 1000 are there");
/// reservation.spend(100);
/// reservation.spend(50);
/// drop(reservation);
///
/// assert_eq!(limiter.peek("alice", Ask::default()).await?.remaining(), Some(850));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a reservation at once gives all of it back"]
pub struct Reservation<Key, L: Limiter<Key>> {
    limiter: L,
    key: Key,
    receipt: Option<Receipt>,
    reserved: u64,
    spent: u64,
}

impl<Key, L: Limiter<Key>> Reservation<Key, L> {
    /// Reserves what is asked, if the limiter allows it.
    ///
    /// The decision comes with it, and alone if it is a refusal. An allowed reservation may have to wait for its turn: see
    /// [`Decision::delay`].
    ///
    /// # Errors
    ///
    /// If the limiter could not decide.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped while the limiter is deciding, what is charged is for the limiter to say.
    pub async fn reserve(limiter: L, key: Key, ask: Ask) -> Result<(Option<Self>, Decision), Error> {
        let outcome = limiter.acquire(&key, ask).await?;
        let reservation = outcome.decision.is_allowed().then(|| {
            let reserved = outcome.receipt.as_ref().map_or(0, Receipt::cost);
            Self { limiter, key, receipt: outcome.receipt, reserved, spent: 0 }
        });
        Ok((reservation, outcome.decision))
    }

    /// What was reserved.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved
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

    /// Ends it at what it has cost, whatever was spent.
    pub fn settle(mut self, actual: u64) -> Reply<()> {
        self.end(actual)
    }

    /// Ends it as it was reserved, whatever was spent.
    pub fn keep(mut self) {
        self.receipt = None;
    }

    fn end(&mut self, actual: u64) -> Reply<()> {
        match self.receipt.take() {
            Some(receipt) if actual != receipt.cost() => self.limiter.settle(&self.key, receipt, actual),
            _ => Reply::ready(Ok(())),
        }
    }
}

impl<Key, L: Limiter<Key>> Drop for Reservation<Key, L> {
    fn drop(&mut self) {
        if self.receipt.is_some() {
            self.end(self.spent).detach();
        }
    }
}

impl<Key, L: Limiter<Key>> fmt::Debug for Reservation<Key, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("reserved", &self.reserved)
            .field("spent", &self.spent)
            .finish_non_exhaustive()
    }
}
