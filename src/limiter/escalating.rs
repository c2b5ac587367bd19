use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::pair::then;
use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::decision::{AcquireOptions, BlockReason, Decision};
use crate::error::Error;
use crate::escalation::{BLOCKS, DENIALS, Escalation, PAUSE};
use crate::observe::{Event, Observer, Observers, WarningKind};

/// A limiter that blocks keys which continue to send requests while they are denied: for longer each time.
///
/// An [`Escalation`] names a limit of the limiter inside. A second limiter counts the denials of this limit, and the
/// blocks of each key. Both are in the same store, so with Redis all processes share the counts and the blocks.
///
/// ```
/// use tower_ratelimit::limiter::{Escalating, Escalation};
/// use tower_ratelimit::{BlockReason, Gcra, Limit, Limiter, Memory, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter: Memory<str, _> = Memory::new(Limit::new("api", Gcra::new(Quota::per_second(10))));
/// let escalation = Escalation::new("api", Quota::per_minute(20));
/// let counts: Memory<str, _> = Memory::new(escalation.limits());
/// let limiter = Escalating::new(limiter, counts, escalation);
///
/// let mut decisions = Vec::new();
/// for _ in 0..31 {
///     decisions.push(limiter.check("mallory", 1).await?);
/// }
/// // The 21st denial blocks the key for a minute, and says so.
/// assert_eq!(decisions[29].block_reason(), None);
/// assert_eq!(decisions[30].block_reason(), Some(BlockReason::Escalation));
/// assert_eq!(decisions[30].retry_after_secs(), Some(60));
/// # Ok(())
/// # }
/// ```
///
/// # What counts
///
/// A denial counts if the limit is the [most restrictive](Decision::most_restrictive) one of the decision, and the key is
/// not blocked. So these do not count: allowed and exempt requests, denials of a [shadow](crate::Limit::shadow), of another
/// limit or of a policy, denials [by leases](Decision::is_denied_by_leases), requests of a blocked key, and costs that exceed
/// the limit.
///
/// If the limiter has no such limit, or if the limit denies no request, each decision is an error that lists the limits to
/// name: a [shadow](crate::Limit::shadow) and a guaranteed [share](crate::Limit::guarantee) never deny. The limits are read
/// until the limit is found: if `replace` removes it later, no denial counts. A limiter of your own must name it for every
/// key, unless no limit is named.
///
/// **A client that waits for `retry_after` is served**, also behind a block, if no other client uses its key and the wait
/// is no [estimate](Decision::is_estimate): the denial that blocks a key has the `retry_after` of the block. Each denial
/// counts, also of a client that waits after each: allow more denials than such a client meets.
///
/// A block applies to the sub-key of its limit. It denies all requests, so do not escalate a limit beside a
/// [guaranteed share](crate::Limit::guarantee), or one that [keeps units free](crate::Limit::keep_free_by).
///
/// Each block needs its own denials: they count from the start of the last block. The time of [`forget_after`](Escalation::forget_after) starts with the last block, too. `reset` resets the
/// counts, too. A block of zero keeps them, and the next denials can block the key again. Of denials that are decided
/// concurrently, one blocks the key. The others then count for the next block.
///
/// # What a denial costs
///
/// | Request | Calls of the limiter inside | Calls of the counts | In sequence |
/// |---|---|---|---|
/// | allowed, or denied without counting | 1 | 0 | 1 |
/// | of a blocked key | 1; 0 with a [`DeniedCache`](super::DeniedCache) inside | 0 | 1 or 0 |
/// | a denial that counts | 1 | 1 | 2 |
/// | the denial that blocks the key | 1, and 1 to block | 2, and 2 to reset | 4 |
///
/// In Redis each call in sequence is a round trip. A flood of requests on one key thus costs two round trips for each of
/// the denials up to the block, and one or none for each later request.
///
/// # With leases
///
/// The limiter inside can have [leases](crate::store). A denial that only the leases of other processes cause does not count,
/// because the client has not exceeded its limit. A block takes effect in each process with its next report: within the
/// duration of a lease. The limiter that counts cannot be built with leases: what a process spends unreported would be
/// counted late, and units that other processes hold would count as denials.
///
/// # Where to put it
///
/// Around [`DeniedCache`](super::DeniedCache), [`Fallback`](super::Fallback) and [`Chained`](super::Chained): a cache
/// around this limiter would keep denials from being counted. A layer or a task that
/// [waits](crate::RateLimitLayer::max_wait) asks again after a denial, and each time counts: escalate limits only where denials reach
/// the client. To escalate several limits, wrap the limiter once for each.
///
/// If the counts are unavailable, the denial does not count. If the caller drops the future, a denial may not count; a
/// block that has begun is set (feature `timer`).
#[must_use]
pub struct Escalating<L, C> {
    shared: Arc<Shared<L, C>>,
    observers: Observers,
}

struct Shared<L, C> {
    limiter: L,
    counts: C,
    escalation: Escalation,
    /// Set when the limiter has the limit of the escalation, and the limit can deny.
    is_checked: OnceLock<()>,
}

impl<L, C> Escalating<L, C> {
    /// Escalates denials of `limiter`. `counts` has the limits [`Escalation::limits`] or [`Escalation::limits_by`].
    pub fn new(limiter: L, counts: C, escalation: Escalation) -> Self {
        let shared = Shared { limiter, counts, escalation, is_checked: OnceLock::new() };
        Self { shared: Arc::new(shared), observers: Observers::default() }
    }

    /// Returns an error if the limit of the escalation never denies. The limits are read until the limit is found.
    fn check_limit<Key: ?Sized>(&self, key: &Key) -> Result<(), Error>
    where
        L: Limiter<Key>,
    {
        if self.shared.is_checked.get().is_some() {
            return Ok(());
        }
        let (mut limits, escalated) = (Vec::new(), self.shared.escalation.limit());
        let mut visit = |name: &str, denies| limits.push((name.to_owned(), denies));
        self.shared.limiter.limits_of(key, &mut LimitsOfKey::all(&mut visit));
        let cause = match limits.iter().find(|(name, _)| name == escalated) {
            Some((_, false)) => "a shadow or a guaranteed share denies no request",
            None if !limits.is_empty() => "the limiter has no limit of this name",
            _ => {
                let _ = self.shared.is_checked.set(());
                return Ok(());
            }
        };
        let denying: Vec<_> = limits.iter().filter(|(_, denies)| *denies).map(|(name, _)| name).collect();
        Err(Error::config(format!("escalation of limit {escalated:?}: {cause}; name one of {denying:?}")))
    }

    /// Adds an observer, which receives an [`Escalated`](Event::Escalated) for each block.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Returns the limiter inside, for operations that only its type has.
    pub fn get_ref(&self) -> &L {
        &self.shared.limiter
    }

    /// Counts a denial, and blocks its key if there are too many. Returns the denial, as of the block.
    async fn count<Key>(self, key: Key::Owned, denied: Outcome) -> Result<Outcome, Error>
    where
        Key: ToOwned + ?Sized + 'static,
        Key::Owned: Send + 'static,
        L: Limiter<Key>,
        C: Limiter<Key>,
    {
        let Outcome { decision, held } = denied;
        let decision = match self.escalate::<Key>(key).await {
            Ok(Some(step)) => {
                let escalation = &self.shared.escalation;
                let (limit, duration) = (escalation.limit(), escalation.duration(step));
                self.observers.emit(|| Event::Escalated { limit, duration, step });
                decision.into_blocked(limit, duration)
            }
            Ok(None) => decision,
            Err(error) if error.is_unavailable() => decision,
            Err(error) => {
                self.observers.warn_once(WarningKind::FailedEscalation, || Some(format!("escalation failed: {error}")));
                decision
            }
        };
        Ok(Outcome { decision, held })
    }

    /// Returns the number of the block that this denial has led to.
    async fn escalate<Key>(&self, key: Key::Owned) -> Result<Option<usize>, Error>
    where
        Key: ToOwned + ?Sized + 'static,
        L: Limiter<Key>,
        C: Limiter<Key>,
    {
        let Shared { limiter, counts, escalation, .. } = &*self.shared;
        let counted = counts.check(key.borrow(), Escalation::denial());
        if !Escalation::is_exceeded(&counted.await?) {
            return Ok(None);
        }
        let counted = counts.check(key.borrow(), Escalation::block());
        let Some(step) = escalation.step(&counted.await?) else { return Ok(None) };
        let (limit, duration, reason) = (escalation.limit(), escalation.duration(step), BlockReason::Escalation);
        let blocked = limiter.administer(key.borrow(), AdminOperation::Block { limit, duration, reason });
        // The blocks are forgotten a while after this one, not after the first one.
        let blocks = AdminOperation::SetUsage { limit: BLOCKS, used: step as u64 };
        let blocks = counts.administer(key.borrow(), blocks);
        let denials = counts.administer(key.borrow(), AdminOperation::SetUsage { limit: DENIALS, used: 0 });
        blocked.and(blocks.and(denials)).complete_on_drop().await?;
        Ok(Some(step))
    }
}

impl<Key, L, C> Limiter<Key> for Escalating<L, C>
where
    Key: ToOwned + ?Sized + 'static,
    Key::Owned: Send + 'static,
    L: Limiter<Key>,
    C: Limiter<Key>,
{
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if let Err(error) = self.check_limit(key) {
            return LimiterFuture::ready(Err(error));
        }
        then(self.shared.limiter.acquire(key, options), self, key, |this, key, decided| match decided {
            Ok(outcome) if this.shared.escalation.counts(&outcome.decision) => {
                let mut future = LimiterFuture::pending(this.clone().count::<Key>(key.to_owned(), outcome));
                // Counts in memory are ready.
                // No wake-up is lost: the caller polls a pending future again, with its own waker.
                match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(result) => LimiterFuture::ready(result),
                    Poll::Pending => future,
                }
            }
            decided => LimiterFuture::ready(decided),
        })
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.shared.limiter.peek(key, options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.shared.limiter.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let done = self.shared.limiter.administer(key, operation);
        match operation {
            AdminOperation::Reset => {
                let counts = self.shared.counts.administer(key, operation);
                done.and(counts)
            }
            // Else the pause after the block would let no denial block the key.
            AdminOperation::Block { limit, duration: Duration::ZERO, .. }
                if limit == self.shared.escalation.limit() =>
            {
                let pause = AdminOperation::SetUsage { limit: PAUSE, used: 0 };
                done.and(self.shared.counts.administer(key, pause))
            }
            _ => done,
        }
    }
}

impl_clone!([L, C] Escalating<L, C> { shared, observers });

impl_debug!([L: fmt::Debug, C] Escalating<L, C> |Escalating { shared, .. }| {
    limiter: shared.limiter,
    escalation: shared.escalation,
});
