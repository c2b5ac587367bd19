//! The seam between whoever asks and whatever decides, and limiters made of limiters.

mod admin;
mod boxed;
mod chained;
mod denied_cache;
mod fail_open;
mod fallback;
mod future;
mod held;
mod reservation;

pub use self::admin::AdminOperation;
pub(crate) use self::admin::admin_methods;
pub use self::boxed::BoxLimiter;
pub use self::chained::{Chained, ChainedFuture};
pub use self::denied_cache::{DeniedCache, DeniedCacheFuture};
pub use self::fail_open::{FailOpen, FailOpenFuture};
pub use self::fallback::{Fallback, FallbackFuture};
pub use self::future::{Acquisition, BoxFuture, LimiterFuture};
pub use self::held::Held;
pub use self::reservation::Reservation;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use std::future::Future;
use std::sync::Arc;

/// Decides whether a key may have what is asked: the one thing that the middleware knows of stores and algorithms.
///
/// [`Memory`](crate::Memory) is one. Only [`acquire`](Self::acquire) must be written; what a limiter of your own does
/// not override answers with an error for which [`is_unsupported`](Error::is_unsupported) holds.
///
/// A decision that is ready at once costs no future and no allocation; one that has to ask elsewhere answers with a
/// future. That future must not borrow from the limiter or the key. Dropping it abandons the decision: whether it is
/// charged then is for the limiter to declare.
///
/// # Example
///
/// A limiter that refuses while the doors are closed.
///
/// ```
/// use std::future::{Ready, ready};
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// use tower_ratelimit::limiter::{Acquisition, Limiter, Outcome};
/// use tower_ratelimit::{AcquireOptions, Clock, Decision, Error, SystemClock, Verdict};
///
/// struct Doors {
///     open: AtomicBool,
///     clock: SystemClock,
/// }
///
/// impl<Key: ?Sized> Limiter<Key> for Doors {
///     type Future = Ready<Result<Outcome, Error>>;
///
///     fn acquire(&self, _key: &Key, _ask: AcquireOptions) -> Acquisition<Self::Future> {
///         let verdict = if self.open.load(Ordering::Relaxed) {
///             Verdict::Allowed
///         } else {
///             Verdict::Denied { retry_after: Duration::from_secs(60) }
///         };
///         Acquisition::Ready(Ok(Decision::by_policy(self.clock.now(), verdict).into()))
///     }
/// }
///
/// let doors = Doors { open: AtomicBool::new(false), clock: SystemClock::new() };
/// let Acquisition::Ready(outcome) = doors.acquire("anybody", AcquireOptions::default()) else { unreachable!() };
/// assert!(!outcome?.decision.is_allowed());
/// # Ok::<(), Error>(())
/// ```
pub trait Limiter<Key: ?Sized> {
    /// A decision on its way. A limiter that always answers at once names [`std::future::Ready`].
    type Future: Future<Output = Result<Outcome, Error>> + Send + 'static;

    /// Decides, and charges the key if the request is allowed. A denial charges nothing.
    ///
    /// With [`AcquireOptions::hold`] the limiter holds the cost instead of charging it, and returns its guard in [`Outcome::held`]. A
    /// limiter that cannot hold returns an error for which [`is_unsupported`](Error::is_unsupported) holds.
    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future>;

    /// Holds the cost instead of charging it: what is held counts like what is charged, until the guard in
    /// [`Outcome::held`] charges the actual cost or releases it.
    ///
    /// The same as [`acquire`](Self::acquire) with [`AcquireOptions::hold`].
    fn hold(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        self.acquire(key, ask.hold())
    }

    /// What [`acquire`](Self::acquire) would answer, without charging.
    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        let _ = (key, ask);
        LimiterFuture::unsupported("peek failed: this limiter does not support it")
    }

    /// A denial that [`acquire`](Self::acquire) would answer from memory, without asking the store: see
    /// [`DeniedCache`](super::DeniedCache).
    #[doc(hidden)]
    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        let _ = (key, ask);
        None
    }

    /// Runs an administrative operation on a key. The default returns an error for which
    /// [`is_unsupported`](Error::is_unsupported) holds.
    ///
    /// The stores and combinators have the methods `set_usage`, `block`, `unblock` and `reset` for it.
    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let _ = key;
        LimiterFuture::unsupported(match operation {
            AdminOperation::SetUsage { .. } => "set usage failed: this limiter does not support it",
            AdminOperation::Block { .. } => "block failed: this limiter does not support it",
            AdminOperation::Reset => "reset failed: this limiter does not support it",
        })
    }
}

impl<Key: ?Sized, L: Limiter<Key> + ?Sized> Limiter<Key> for Arc<L> {
    type Future = L::Future;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        (**self).acquire(key, ask)
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        (**self).peek(key, ask)
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        (**self).cached_denial(key, ask)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        (**self).administer(key, operation)
    }
}

/// A decision, and what is held for it.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "a user's own limiter makes them")]
pub struct Outcome {
    /// The decision.
    pub decision: Decision,
    /// The guard of the held cost, if the caller asked to [hold](AcquireOptions::hold) it and the request is allowed.
    pub held: Option<Held>,
}

impl From<Decision> for Outcome {
    /// An outcome that holds nothing.
    fn from(decision: Decision) -> Self {
        Self { decision, held: None }
    }
}
