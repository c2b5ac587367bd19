//! A caller that waits for a limiter in the queues of the process.

use std::borrow::Borrow;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limiter::{Limiter, LimiterFuture, Outcome};
use crate::middleware::queue::{Arrival, Ask as _, Asked, Bounds, KeyAsk, Queues, Refused, Waiting};
use crate::response::Rejection;
use crate::runtime::Instant;

/// The queues of all callers of the process.
fn queues() -> &'static Arc<Queues> {
    static QUEUES: OnceLock<Arc<Queues>> = OnceLock::new();
    QUEUES.get_or_init(|| Arc::new(Queues::new(false)))
}

/// The wait of a caller that sets no bound.
const UNBOUNDED: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// A key and a limiter, for which one caller waits at a time.
pub(crate) struct Caller<Q, K: ?Sized, L>(Arc<KeyAsk<Q, K, L>>);

impl<Q, K, L> Caller<Q, K, L>
where
    Q: Borrow<K> + Send + Sync + 'static,
    K: Hash + ?Sized + 'static,
    L: Limiter<K>,
{
    pub(crate) fn new(limiter: L, key: Q) -> Self {
        Self(Arc::new(KeyAsk::of_caller(key, limiter)))
    }

    /// Waits until the limiter allows the cost, at most for [`AcquireOptions::max_delay`]. Dropping the future leaves the
    /// queue.
    pub(crate) fn until_ready(&self, options: AcquireOptions) -> LimiterFuture<Decision> {
        if options.hold || options.keeps_guard {
            return LimiterFuture::unsupported("waiting failed: it cannot hold a cost; call `hold` of the limiter");
        }
        let max_wait = options.max_delay.unwrap_or(UNBOUNDED);
        let options = options.max_delay(Duration::ZERO);
        let arrived_at = Instant::now();
        let behind = if queues().is_active() { self.0.existing_queue(options, queues()) } else { None };
        let acquired = match behind {
            Some(_) => None,
            None => match self.0.acquire(options).try_ready() {
                Ok(result) => match result.and_then(|outcome| outcome.check_guard(false)) {
                    Ok(outcome) if is_denied(&outcome.decision, max_wait) => Some(LimiterFuture::ready(Ok(outcome))),
                    decided => return LimiterFuture::ready(decided.map(|outcome| outcome.decision)),
                },
                Err(pending) => Some(pending),
            },
        };
        let ask = Arc::clone(&self.0);
        LimiterFuture::pending(async move {
            let arrival = || {
                let class = Queues::class(&ask.identity(), options);
                Arrival { ask: Arc::clone(&ask) as _, class, options, max_wait: Some(max_wait), arrived_at }
            };
            // `None` if the queue has ended.
            if let Some(joined) = behind.and_then(|id| queues().join_existing(id, arrival(), Bounds::NONE)) {
                return start(joined, arrived_at).await;
            }
            let acquired = acquired.unwrap_or_else(|| ask.acquire(options));
            let Outcome { decision, .. } = acquired.await?.check_guard(false)?;
            if !is_denied(&decision, max_wait) {
                return Ok(decision);
            }
            start(queues().join(arrival(), Asked::Denied(decision), Bounds::NONE), arrived_at).await
        })
    }
}

/// Whether the caller must wait for another decision.
fn is_denied(decision: &Decision, max_wait: Duration) -> bool {
    !decision.is_allowed() && !decision.exceeds_limit() && !max_wait.is_zero()
}

async fn start(joined: Result<Waiting, Refused>, arrived_at: Instant) -> Result<Decision, Error> {
    let started = match joined {
        Ok(mut waiting) => poll_fn(|cx| waiting.poll(cx)).await,
        Err(refused) => Err(refused.rejection),
    };
    match started {
        Ok(start) => Ok(start.into_parts().0.into_delayed(arrived_at.elapsed())),
        Err(Rejection::OverLimit(decision)) => Ok(decision),
        Err(Rejection::Unavailable(error)) => Err(error),
        Err(Rejection::MissingKey(_)) => unreachable!("the caller has a key"),
    }
}
