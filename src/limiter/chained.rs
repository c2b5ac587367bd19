use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;

use super::future::{Acquisition, LimiterFuture};
use super::held::Held;
use super::{AdminOperation, Limiter, Outcome, admin_methods};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};
use crate::error::Error;
use crate::sync::POLLED_AFTER_COMPLETION;

/// Two limiters that decide together, though no store can hold both: the first [holds](Held) the cost, the second decides, and
/// then what the first holds is charged or released.
///
/// For limits whose keys can't share a slot of a cluster ("per user, and in all"), or that lie in different stores. Where one
/// limiter can hold them all it should: it decides at once, and in one round trip.
///
/// ```
/// use tower_ratelimit::limiter::Chained;
/// # #[cfg(feature = "redis-cluster")]
/// # fn f() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{Gcra, Limit, Quota, Redis, RedisServer};
///
/// let cluster = RedisServer::cluster(["redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])?;
/// // Spread over all nodes, each user's key by itself.
/// let user = Redis::<u64>::new(cluster.clone(), "user", Limit::new("user", Gcra::new(Quota::per_second(10))));
/// // One key, on one node.
/// let all = Limit::new("all", Gcra::new(Quota::per_second(5000))).keyed_by(|_: &u64| ());
/// let limiter = Chained::new(user, Redis::new(cluster, "all", all));
/// # Ok(())
/// # }
/// ```
///
/// **The limiter that the fewest keys share comes first**, and the one that all share last. A key that its own limit denies
/// then never takes from the others' limit, not even for a moment. More than two are put together with [`and`](Self::and), or
/// are `Chained`s themselves. Give their limits different names: they appear side by side in decisions and header fields.
///
/// # What it decides
///
/// Request by request it decides as one limiter with all limits would: allowed if both allow; denied with nothing charged, and
/// with the exact wait for both. For that, after a denial by one limiter the other is [peeked](Limiter::peek) at; if that fails
/// it is left out, and the wait is that of the limiter that denied. If a limiter cannot answer, neither is charged, and the
/// error is returned.
///
/// Concurrent requests see these differences to one limiter:
///
/// - **A held cost counts.** While the second limiter decides, other requests find the first limit as if the request had
///   passed: they may be denied where one limiter would have allowed them. The limit then is less by what is held, at most.
///   **It is never more**: each limit holds as it does by itself.
/// - **No scheduled starts.** Each limiter is asked for what is available now, whatever delay is acceptable. A
///   [`LeakyQueue`](crate::LeakyQueue) then denies until the start, and a waiting request asks again then.
/// - **It takes longer**: a round trip for each limiter in turn and one more after a denial, each within its limiter's own
///   deadline.
///
/// A [`DeniedCache`](super::DeniedCache) goes around each limiter, not around both. While either cache remembers a refusal of
/// the key, neither limiter is asked: nothing is charged, and the decision lists the limits of those that have refused.
///
/// # If the process ends between the phases
///
/// In memory nothing is left. In Redis the held cost expires and is settled whole. The first limiter must be able to hold:
/// [`RedisCell`](crate::RedisCell) cannot, and belongs last.
///
/// # Cancellation
///
/// If the future is dropped, what the first limiter holds is released in the background. What the limiter that is just
/// deciding charges is for that one to say.
///
/// # Operations
///
/// [`reset`](Self::reset) resets both at the same time: where one fails, the other is done, and the error is returned.
/// [`set_usage`](Self::set_usage), [`block`](Self::block) and [`unblock`](Self::unblock) go to the first of them that has a
/// limit of that name.
#[derive(Clone, Debug)]
pub struct Chained<A, B> {
    first: A,
    second: B,
}

impl<A, B> Chained<A, B> {
    /// Asks `first`, then `second`.
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }

    /// Asks `last` after these.
    pub fn and<C>(self, last: C) -> Chained<Self, C> {
        Chained::new(self, last)
    }

    admin_methods!();
}

impl<A, B> Chained<A, B> {
    fn after_first<Key>(
        &self,
        key: &Key,
        ask: AcquireOptions,
        first: Result<Outcome, Error>,
    ) -> Acquisition<ChainedFuture<Key, A, B>>
    where
        Key: ToOwned + ?Sized,
        A: Limiter<Key> + Clone,
        B: Limiter<Key> + Clone,
    {
        let first = match first {
            Ok(first) if first.decision.is_allowed() => first,
            Ok(refused) => return now_or_later(self.refused_by_first(key, ask, refused.decision)),
            Err(error) => return Acquisition::Ready(Err(error)),
        };
        match self.second.acquire(key, ask) {
            Acquisition::Ready(second) => now_or_later(self.after_second(key, ask, first.decision, first.held, second)),
            Acquisition::Pending(future) => {
                let asked = Asked { limiter: self.clone(), key: key.to_owned(), ask };
                Acquisition::Pending(ChainedFuture::Second {
                    future,
                    reserved: Some((asked, Unconfirmed(first.held), first.decision)),
                })
            }
        }
    }

    fn after_second<Key: ?Sized>(
        &self,
        key: &Key,
        ask: AcquireOptions,
        first: Decision,
        held: Option<Held>,
        second: Result<Outcome, Error>,
    ) -> LimiterFuture<Outcome>
    where
        A: Limiter<Key>,
    {
        match second {
            Ok(second) if second.decision.is_allowed() => {
                let decision = combined(ask, Some(first), Some(second.decision));
                let held = if ask.hold {
                    Held::join(held, second.held)
                } else {
                    // Nobody waits for it: the held cost counts like the charge that replaces it.
                    drop(held);
                    None
                };
                LimiterFuture::ready(Ok(Outcome { decision, held }))
            }
            Ok(refused) => self.refused_by_second(key, ask, held, refused.decision),
            Err(error) => release(held).then(|_| Err(error)),
        }
    }

    fn refused_by_first<Key: ?Sized>(&self, key: &Key, ask: AcquireOptions, refused: Decision) -> LimiterFuture<Outcome>
    where
        B: Limiter<Key>,
    {
        self.second.peek(key, ask).then(move |second| Ok(combined(ask, Some(refused), second.ok()).into()))
    }

    /// The figures of the first limiter are to be those of a key that was not charged.
    fn refused_by_second<Key: ?Sized>(
        &self,
        key: &Key,
        ask: AcquireOptions,
        held: Option<Held>,
        refused: Decision,
    ) -> LimiterFuture<Outcome>
    where
        A: Limiter<Key>,
    {
        let released = release(held);
        let seen = released.with(self.first.peek(key, ask));
        seen.then(move |both| Ok(combined(ask, both?.1.ok(), Some(refused)).into()))
    }

    /// Lets the second one do what the first one does not have.
    fn or_second<Key>(
        &self,
        key: &Key,
        first: LimiterFuture<()>,
        f: impl FnOnce(&B, &Key) -> LimiterFuture<()> + Send + 'static,
    ) -> LimiterFuture<()>
    where
        Key: ToOwned + ?Sized + 'static,
        Key::Owned: Send + 'static,
        B: Clone + Send + Sync + 'static,
    {
        let lacks = |error: &Error| error.is_config() || error.is_unsupported();
        match first.try_ready() {
            Ok(Err(error)) if lacks(&error) => f(&self.second, key),
            Ok(result) => LimiterFuture::ready(result),
            Err(first) => {
                let (second, key) = (self.second.clone(), key.to_owned());
                LimiterFuture::pending(async move {
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

/// If it cannot be released, the store lets it expire, and the answer is the same.
fn release(held: Option<Held>) -> LimiterFuture<()> {
    held.map_or_else(|| LimiterFuture::ready(Ok(())), Held::release)
}

/// What both say together. One that can't be asked is left out.
fn combined(ask: AcquireOptions, first: Option<Decision>, second: Option<Decision>) -> Decision {
    let parts: Vec<Decision> = first.into_iter().chain(second).collect();
    let verdict = parts.iter().map(Decision::verdict).fold(Verdict::Allowed, Verdict::stricter_of);
    let decided_at = parts.iter().map(Decision::decided_at).max().unwrap_or_default();
    let standings = || parts.iter().flat_map(|part| part.limits().iter().cloned());
    let refused = || !verdict.is_allowed();
    let list_all = ask.lists_all(standings().any(|standing| standing.is_shadow()), refused);
    let spoken = parts.iter().filter_map(|part| part.most_restrictive().cloned());
    let mut decision = if list_all {
        Decision::combine(decided_at, true, standings())
    } else {
        Decision::combine(decided_at, false, spoken)
    };
    if decision.verdict() != verdict {
        // No limit has said so, but a policy.
        decision = Decision::by_policy(decided_at, verdict);
    }
    // Who has refused, or who stands in for one that should have allowed.
    let deciding = parts.iter().filter(|part| part.is_allowed() == verdict.is_allowed());
    let source = deciding.map(Decision::source).find(|source| *source != DecisionSource::Store);
    let is_estimate = parts.iter().any(|part| part.is_estimate() && !part.is_allowed());
    decision.with_source(source.unwrap_or_default()).with_estimate(is_estimate)
}

impl<Key, A, B> Limiter<Key> for Chained<A, B>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    A: Limiter<Key> + Clone + Send + Sync + 'static,
    B: Limiter<Key> + Clone + Send + Sync + 'static,
{
    type Future = ChainedFuture<Key, A, B>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        if let Some(denied) = self.cached_denial(key, ask) {
            return Acquisition::Ready(Ok(denied.into()));
        }
        let ask = ask.max_delay(Duration::ZERO);
        match self.first.hold(key, ask) {
            Acquisition::Pending(future) => {
                let asked = Asked { limiter: self.clone(), key: key.to_owned(), ask };
                Acquisition::Pending(ChainedFuture::First { future, asked: Some(asked) })
            }
            Acquisition::Ready(first) => self.after_first(key, ask, first),
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        if let Some(denied) = self.cached_denial(key, ask) {
            return LimiterFuture::ready(Ok(denied));
        }
        let ask = ask.max_delay(Duration::ZERO);
        let both = self.first.peek(key, ask).with(self.second.peek(key, ask));
        both.then(move |both| {
            let (first, second) = both?;
            Ok(combined(ask, Some(first?), Some(second?)))
        })
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        let ask = ask.max_delay(Duration::ZERO);
        let (first, second) = (self.first.cached_denial(key, ask), self.second.cached_denial(key, ask));
        (first.is_some() || second.is_some()).then(|| combined(ask, first, second))
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let first = self.first.administer(key, operation);
        match operation {
            AdminOperation::Reset => both_done(first, self.second.administer(key, operation)),
            AdminOperation::SetUsage { limit, used } => {
                let limit = limit.to_owned();
                self.or_second(key, first, move |second, key| {
                    second.administer(key, AdminOperation::SetUsage { limit: &limit, used })
                })
            }
            AdminOperation::Block { limit, duration } => {
                let limit = limit.to_owned();
                self.or_second(key, first, move |second, key| {
                    second.administer(key, AdminOperation::Block { limit: &limit, duration })
                })
            }
        }
    }
}

/// Both are done, whatever comes of the other.
fn both_done(first: LimiterFuture<()>, second: LimiterFuture<()>) -> LimiterFuture<()> {
    first.with(second).then(|both| {
        let (first, second) = both?;
        first.and(second)
    })
}

/// A decision on its way, from one limiter after the other.
#[pin_project(project = Projection)]
#[must_use = "a decision that is not awaited may not be made"]
#[allow(missing_debug_implementations, reason = "named by the limiter only")]
pub enum ChainedFuture<Key, A, B>
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
    /// The second one decides; the first holds.
    #[doc(hidden)]
    Second {
        #[pin]
        future: B::Future,
        reserved: Option<(Asked<Key, A, B>, Unconfirmed, Decision)>,
    },
    /// One has refused or failed: the other is told.
    #[doc(hidden)]
    Concluding { reply: LimiterFuture<Outcome> },
}

impl<Key, A, B> Future for ChainedFuture<Key, A, B>
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
                    let Asked { limiter, key, ask } = asked.take().expect(POLLED_AFTER_COMPLETION);
                    limiter.after_first(key.borrow(), ask, first)
                }
                Projection::Second { future, reserved } => {
                    let second = ready!(future.poll(cx));
                    let (Asked { limiter, key, ask }, mut held, first) =
                        reserved.take().expect(POLLED_AFTER_COMPLETION);
                    now_or_later(limiter.after_second(key.borrow(), ask, first, held.0.take(), second))
                }
                Projection::Concluding { reply } => return Pin::new(reply).poll(cx),
            };
            match next {
                Acquisition::Ready(result) => return Poll::Ready(result),
                Acquisition::Pending(next) => self.set(next),
            }
        }
    }
}

/// What is asked, for as long as it takes.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "private, reached by the future's variants")]
pub struct Asked<Key: ToOwned + ?Sized, A, B> {
    limiter: Chained<A, B>,
    key: Key::Owned,
    ask: AcquireOptions,
}

/// What the first limiter holds while the second decides: released when dropped.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "private, reached by the future's variants")]
pub struct Unconfirmed(Option<Held>);

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        release(self.0.take()).detach();
    }
}

fn now_or_later<Key, A, B>(reply: LimiterFuture<Outcome>) -> Acquisition<ChainedFuture<Key, A, B>>
where
    Key: ToOwned + ?Sized,
    A: Limiter<Key>,
    B: Limiter<Key>,
{
    match reply.try_ready() {
        Ok(result) => Acquisition::Ready(result),
        Err(reply) => Acquisition::Pending(ChainedFuture::Concluding { reply }),
    }
}
