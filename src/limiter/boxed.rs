use std::fmt;
use std::sync::Arc;

use super::future::{Acquisition, BoxFuture, LimiterFuture};
use super::{AdminOperation, Limiter, Outcome, admin_methods};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;

/// A limiter of any kind, for those who choose at run time. Clones share it.
///
/// A decision that is ready at once stays unboxed.
///
/// ```
/// use tower_ratelimit::limiter::BoxLimiter;
/// use tower_ratelimit::{FixedWindow, Gcra, Memory, Quota};
///
/// let smooth = std::env::args().count() > 1;
/// let quota = Quota::per_minute(100);
/// let limiter: BoxLimiter<str> = if smooth {
///     BoxLimiter::new(Memory::new(Gcra::new(quota)))
/// } else {
///     BoxLimiter::new(Memory::new(FixedWindow::new(quota)))
/// };
/// ```
pub struct BoxLimiter<Key: ?Sized>(Arc<dyn ErasedLimiter<Key>>);

impl<Key: ?Sized> BoxLimiter<Key> {
    /// Boxes a limiter.
    pub fn new(limiter: impl Limiter<Key> + Send + Sync + 'static) -> Self {
        Self(Arc::new(limiter))
    }

    admin_methods!(Key);
}

impl<Key: ?Sized> Limiter<Key> for BoxLimiter<Key> {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        self.0.acquire_boxed(key, ask)
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        self.0.peek_boxed(key, ask)
    }

    fn cached_denial(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        self.0.remembered_denial_boxed(key, ask)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.0.administer_boxed(key, operation)
    }
}

impl<Key: ?Sized> Clone for BoxLimiter<Key> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Key: ?Sized> fmt::Debug for BoxLimiter<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxLimiter").finish_non_exhaustive()
    }
}

/// [`Limiter`] without its associated type.
trait ErasedLimiter<Key: ?Sized>: Send + Sync {
    fn acquire_boxed(&self, key: &Key, ask: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>>;
    fn peek_boxed(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision>;
    fn remembered_denial_boxed(&self, key: &Key, ask: AcquireOptions) -> Option<Decision>;
    fn administer_boxed(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()>;
}

impl<Key: ?Sized, L: Limiter<Key> + Send + Sync> ErasedLimiter<Key> for L {
    fn acquire_boxed(&self, key: &Key, ask: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>> {
        match self.acquire(key, ask) {
            Acquisition::Ready(result) => Acquisition::Ready(result),
            Acquisition::Pending(future) => Acquisition::Pending(Box::pin(future)),
        }
    }

    fn peek_boxed(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        self.peek(key, ask)
    }

    fn remembered_denial_boxed(&self, key: &Key, ask: AcquireOptions) -> Option<Decision> {
        self.cached_denial(key, ask)
    }

    fn administer_boxed(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.administer(key, operation)
    }
}
