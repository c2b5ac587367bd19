use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;

use super::reply::{Acquire, Reply};
use super::seam::{Limiter, Outcome, Receipt};
use crate::decision::{Ask, Decision, Source, Verdict};
use crate::error::Error;

/// Two limiters that decide together, though no store can hold both: each reserves in turn, and what the first has reserved
/// is given back if the second refuses.
///
/// For limits whose keys can't share a slot of a cluster ("per user, and in all"), or that lie in different stores. Where one
/// limiter can hold them all it should: it decides at once, and in one round trip.
///
/// ```
/// use tower_ratelimit::limiter::TwoPhase;
/// # #[cfg(feature = "redis-cluster")]
/// # fn f() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{Gcra, Limit, Quota, Redis, RedisServer};
///
/// let cluster = RedisServer::cluster(["redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])?;
/// // Spread over all nodes, each user's key by itself.
/// let user = Redis::<u64>::new(cluster.clone(), "user", Limit::new("user", Gcra::new(Quota::per_second(10))));
/// // One key, on one node.
/// let all = Limit::new("all", Gcra::new(Quota::per_second(5000))).by(|_: &u64| ());
/// let limiter = TwoPhase::new(user, Redis::new(cluster, "all", all));
/// # Ok(())
/// # }
/// ```
///
/// **The limiter that only the asker shares comes first**, and the one that all share last. Who is refused by his own limit then
/// never takes from the others', not even for a moment; and as only that comes back which the last one refuses or can't answer,
/// nobody is refused without need while it has room. More than two are put together with [`and`](Self::and), or are
/// `TwoPhase`s themselves. Give their limits different names: they appear side by side in decisions and header fields.
///
/// # What it decides
///
/// Request by request it decides as one limiter with all limits would: allowed if both allow; refused with nothing charged,
/// and with the exact wait for both. To tell that, after a refusal by one the other is [peeked](Limiter::peek) at; where that
/// fails it is left out, and the wait is that of the one that has refused. If one can't answer, neither is charged, and the
/// error is told.
///
/// Among requests at the same time it differs from one limiter in this:
///
/// - **What is on its way counts as used.** Between the first one's charge and its return, some two round trips, others find the
///   first limit as if that request had passed: they may be refused where one limiter would have let them through, and are
///   told to wait as if it had. The limit then is less by what the decisions on their way charge, at most. **It is never
///   more**: each limit holds as it does by itself.
/// - **A fixed window** that a charge has begun, and that others have used before that charge came back, ends as that charge's
///   would: up to those two round trips earlier.
/// - **No later turns.** Each limiter is asked for what can be had at once, whatever delay is acceptable: a later turn with the
///   first would have to be counted by the second for that time. A [`LeakyQueue`](crate::LeakyQueue) then refuses until the
///   turn has come, and who waits asks again then.
/// - **It takes longer**: a round trip for each limiter in turn and one more after a refusal, each within its limiter's own
///   deadline.
///
/// A [`DeniedCache`](super::DeniedCache) goes around each limiter, not around both: there it sees what is given back, and
/// forgets the refusals that were without need. What other processes give back it does not see: its
/// [`max_age`](super::DeniedCache::max_age) says for how long.
///
/// # What may stay charged
///
/// If the process ends between the two phases, or the first limiter can't be reached any more to give back, its charge stays
/// until its window is over. A limiter that fails by its deadline may have charged, as it says itself. One without receipts,
/// such as [`RedisCell`](crate::RedisCell), can give nothing back, and belongs last.
///
/// # Cancellation
///
/// If the future is dropped, what the first limiter has charged is given back, as [`Reply::detach`] does: by the tokio
/// runtime, if there is one. What the limiter that is just deciding charges is for that one to say.
///
/// # Operations
///
/// [`settle`](Limiter::settle) and [`give_back`](Limiter::give_back) settle each limiter's charge, and
/// [`reset`](Limiter::reset) resets both, at the same time: where one fails, the other is done, and the error is told.
/// [`set`](Limiter::set), [`block`](Limiter::block) and [`forgive`](Limiter::forgive) go to the first of them that has a limit of
/// that name.
#[derive(Clone, Debug)]
pub struct TwoPhase<A, B> {
    first: A,
    second: B,
}

impl<A, B> TwoPhase<A, B> {
    /// Asks `first`, then `second`.
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }

    /// Asks `last` after these.
    pub fn and<C>(self, last: C) -> TwoPhase<Self, C> {
        TwoPhase::new(self, last)
    }
}

impl<A, B> TwoPhase<A, B> {
    fn after_first<Key>(&self, key: &Key, ask: Ask, first: Result<Outcome, Error>) -> Acquire<TwoPhaseFuture<Key, A, B>>
    where
        Key: ToOwned + ?Sized,
        A: Limiter<Key> + Clone,
        B: Limiter<Key> + Clone,
    {
        let first = match first {
            Ok(first) if first.decision.is_allowed() => first,
            Ok(refused) => return now_or_later(self.refused_by_first(key, ask, refused.decision)),
            Err(error) => return Acquire::Ready(Err(error)),
        };
        match self.second.acquire(key, ask) {
            Acquire::Ready(second) => now_or_later(self.after_second(key, ask, first, second)),
            Acquire::Pending(future) => {
                let asked = Asked { limiter: self.clone(), key: key.to_owned(), ask };
                Acquire::Pending(TwoPhaseFuture::Second { future, reserved: Reserved(Some((asked, first))) })
            }
        }
    }

    fn after_second<Key: ?Sized>(
        &self,
        key: &Key,
        ask: Ask,
        first: Outcome,
        second: Result<Outcome, Error>,
    ) -> Reply<Outcome>
    where
        A: Limiter<Key>,
    {
        match second {
            Ok(second) if second.decision.is_allowed() => {
                let decision = combined(ask, Some(first.decision), Some(second.decision));
                Reply::ready(Ok(Outcome { decision, receipt: Receipt::joint([first.receipt, second.receipt]) }))
            }
            Ok(refused) => self.refused_by_second(key, ask, first.receipt, refused.decision),
            Err(error) => self.give_back_first(key, first.receipt).then(|_| Err(error)),
        }
    }

    fn refused_by_first<Key: ?Sized>(&self, key: &Key, ask: Ask, refused: Decision) -> Reply<Outcome>
    where
        B: Limiter<Key>,
    {
        self.second.peek(key, ask).then(move |second| Ok(combined(ask, Some(refused), second.ok()).into()))
    }

    /// The first one's figures are to be those of a key that was not charged.
    fn refused_by_second<Key: ?Sized>(
        &self,
        key: &Key,
        ask: Ask,
        reserved: Option<Receipt>,
        refused: Decision,
    ) -> Reply<Outcome>
    where
        A: Limiter<Key>,
    {
        let returned = self.give_back_first(key, reserved);
        let seen = returned.with(self.first.peek(key, ask));
        seen.then(move |both| Ok(combined(ask, both?.1.ok(), Some(refused)).into()))
    }

    /// If it can't be done the charge stays, and the answer is the same.
    fn give_back_first<Key: ?Sized>(&self, key: &Key, reserved: Option<Receipt>) -> Reply<()>
    where
        A: Limiter<Key>,
    {
        match reserved {
            Some(receipt) => self.first.give_back(key, receipt).until_done(),
            None => Reply::ready(Ok(())),
        }
    }

    /// Lets the second one do what the first one does not have.
    fn or_second<Key>(
        &self,
        key: &Key,
        first: Reply<()>,
        f: impl FnOnce(&B, &Key) -> Reply<()> + Send + 'static,
    ) -> Reply<()>
    where
        Key: ToOwned + ?Sized + 'static,
        Key::Owned: Send + 'static,
        B: Clone + Send + Sync + 'static,
    {
        let lacks = |error: &Error| error.is_config() || error.is_unsupported();
        match first.try_ready() {
            Ok(Err(error)) if lacks(&error) => f(&self.second, key),
            Ok(result) => Reply::ready(result),
            Err(first) => {
                let (second, key) = (self.second.clone(), key.to_owned());
                Reply::pending(async move {
                    match first.await {
                        Err(error) if lacks(&error) => {
                            let reply = f(&second, key.borrow());
                            reply.await
                        }
                        result => result,
                    }
                })
            }
        }
    }
}

/// What both say together. One that can't be asked is left out.
fn combined(ask: Ask, first: Option<Decision>, second: Option<Decision>) -> Decision {
    let parts: Vec<Decision> = first.into_iter().chain(second).collect();
    let verdict = parts.iter().map(Decision::verdict).fold(Verdict::Allowed, Verdict::and);
    let decided_at = parts.iter().map(Decision::decided_at).max().unwrap_or_default();
    let standings = || parts.iter().flat_map(|part| part.standings().iter().cloned());
    let refused = || !verdict.is_allowed();
    let list_all = ask.lists_all(standings().any(|standing| standing.is_shadow()), refused);
    let spoken = parts.iter().filter_map(|part| part.standing().cloned());
    let mut decision = if list_all {
        Decision::of_limits(decided_at, true, standings())
    } else {
        Decision::of_limits(decided_at, false, spoken)
    };
    if decision.verdict() != verdict {
        // No limit has said so, but a policy.
        decision = Decision::by_policy(decided_at, verdict);
    }
    // Who has refused, or who stands in for one that should have allowed.
    let deciding = parts.iter().filter(|part| part.is_allowed() == verdict.is_allowed());
    let source = deciding.map(Decision::source).find(|source| *source != Source::Store);
    decision.from_source(source.unwrap_or_default())
}

impl<Key, A, B> Limiter<Key> for TwoPhase<A, B>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    A: Limiter<Key> + Clone + Send + Sync + 'static,
    B: Limiter<Key> + Clone + Send + Sync + 'static,
{
    type Future = TwoPhaseFuture<Key, A, B>;

    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        let ask = ask.within(Duration::ZERO);
        match self.first.acquire(key, ask) {
            Acquire::Pending(future) => {
                let asked = Asked { limiter: self.clone(), key: key.to_owned(), ask };
                Acquire::Pending(TwoPhaseFuture::First { future, asked: Some(asked) })
            }
            Acquire::Ready(first) => self.after_first(key, ask, first),
        }
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        let ask = ask.within(Duration::ZERO);
        let both = self.first.peek(key, ask).with(self.second.peek(key, ask));
        both.then(move |both| {
            let (first, second) = both?;
            Ok(combined(ask, Some(first?), Some(second?)))
        })
    }

    fn settle(&self, key: &Key, receipt: Receipt, actual: u64) -> Reply<()> {
        let [first, second] = receipt.into_parts();
        let first = first.map(|part| self.first.settle(key, part, actual));
        both_done(first, second.map(|part| self.second.settle(key, part, actual)))
    }

    fn give_back(&self, key: &Key, receipt: Receipt) -> Reply<()> {
        let [first, second] = receipt.into_parts();
        let first = first.map(|part| self.first.give_back(key, part));
        both_done(first, second.map(|part| self.second.give_back(key, part)))
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        let name = limit.to_owned();
        self.or_second(key, self.first.set(limit, key, used), move |second, key| second.set(&name, key, used))
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        let name = limit.to_owned();
        self.or_second(key, self.first.block(limit, key, span), move |second, key| second.block(&name, key, span))
    }

    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        let name = limit.to_owned();
        self.or_second(key, self.first.forgive(limit, key), move |second, key| second.forgive(&name, key))
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        both_done(Some(self.first.reset(key)), Some(self.second.reset(key)))
    }
}

/// Both are done, whatever comes of the other.
fn both_done(first: Option<Reply<()>>, second: Option<Reply<()>>) -> Reply<()> {
    let [first, second] = [first, second].map(|reply| reply.unwrap_or_else(|| Reply::ready(Ok(()))));
    first.with(second).then(|both| {
        let (first, second) = both?;
        first.and(second)
    })
}

/// A decision on its way, from one limiter after the other.
#[pin_project(project = Projection)]
#[must_use = "a decision that is not awaited may not be made"]
#[allow(missing_debug_implementations, reason = "named by the limiter only")]
pub enum TwoPhaseFuture<Key, A, B>
where
    Key: ToOwned + ?Sized,
    A: Limiter<Key>,
    B: Limiter<Key>,
{
    /// The first one decides.
    #[doc(hidden)]
    First {
        #[pin]
        future: A::Future,
        asked: Option<Asked<Key, A, B>>,
    },
    /// The second one decides; the first has charged.
    #[doc(hidden)]
    Second {
        #[pin]
        future: B::Future,
        reserved: Reserved<Key, A, B>,
    },
    /// One has refused or failed: the other is told.
    #[doc(hidden)]
    Concluding { reply: Reply<Outcome> },
}

impl<Key, A, B> Future for TwoPhaseFuture<Key, A, B>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    A: Limiter<Key> + Clone + Send + Sync + 'static,
    B: Limiter<Key> + Clone + Send + Sync + 'static,
{
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project() {
                Projection::First { future, asked } => {
                    let first = ready!(future.poll(cx));
                    let Asked { limiter, key, ask } = asked.take().expect(POLLED_AGAIN);
                    limiter.after_first(key.borrow(), ask, first)
                }
                Projection::Second { future, reserved } => {
                    let second = ready!(future.poll(cx));
                    let (Asked { limiter, key, ask }, first) = reserved.0.take().expect(POLLED_AGAIN);
                    now_or_later(limiter.after_second(key.borrow(), ask, first, second))
                }
                Projection::Concluding { reply } => return Pin::new(reply).poll(cx),
            };
            match next {
                Acquire::Ready(result) => return Poll::Ready(result),
                Acquire::Pending(next) => self.set(next),
            }
        }
    }
}

/// What is asked, for as long as it takes.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "private, reached by the future's variants")]
pub struct Asked<Key: ToOwned + ?Sized, A, B> {
    limiter: TwoPhase<A, B>,
    key: Key::Owned,
    ask: Ask,
}

/// What the first one has charged: given back when dropped.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "private, reached by the future's variants")]
pub struct Reserved<Key: ToOwned + ?Sized, A: Limiter<Key>, B>(Option<(Asked<Key, A, B>, Outcome)>);

impl<Key: ToOwned + ?Sized, A: Limiter<Key>, B> Drop for Reserved<Key, A, B> {
    fn drop(&mut self) {
        if let Some((Asked { limiter, key, .. }, Outcome { receipt: Some(receipt), .. })) = self.0.take() {
            limiter.first.give_back(key.borrow(), receipt).detach();
        }
    }
}

fn now_or_later<Key, A, B>(reply: Reply<Outcome>) -> Acquire<TwoPhaseFuture<Key, A, B>>
where
    Key: ToOwned + ?Sized,
    A: Limiter<Key>,
    B: Limiter<Key>,
{
    match reply.try_ready() {
        Ok(result) => Acquire::Ready(result),
        Err(reply) => Acquire::Pending(TwoPhaseFuture::Concluding { reply }),
    }
}

const POLLED_AGAIN: &str = "a decision was polled after it was ready";
