use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::reply::{Acquire, BoxFuture, Reply};
use super::seam::{Limiter, Outcome};
use crate::decision::{Ask, Decision};
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
pub struct BoxLimiter<Key: ?Sized>(Arc<dyn Erased<Key>>);

impl<Key: ?Sized> BoxLimiter<Key> {
    /// Boxes a limiter.
    pub fn new(limiter: impl Limiter<Key> + Send + Sync + 'static) -> Self {
        Self(Arc::new(limiter))
    }
}

impl<Key: ?Sized> Limiter<Key> for BoxLimiter<Key> {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, key: &Key, ask: Ask) -> Acquire<Self::Future> {
        self.0.acquire_boxed(key, ask)
    }

    fn peek(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        self.0.peek_boxed(key, ask)
    }

    fn remembered_denial(&self, key: &Key, ask: Ask) -> Option<Decision> {
        self.0.remembered_denial_boxed(key, ask)
    }

    fn forgive(&self, limit: &str, key: &Key) -> Reply<()> {
        self.0.forgive_boxed(limit, key)
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        self.0.set_boxed(limit, key, used)
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        self.0.block_boxed(limit, key, span)
    }

    fn reset(&self, key: &Key) -> Reply<()> {
        self.0.reset_boxed(key)
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
trait Erased<Key: ?Sized>: Send + Sync {
    fn acquire_boxed(&self, key: &Key, ask: Ask) -> Acquire<BoxFuture<Result<Outcome, Error>>>;
    fn peek_boxed(&self, key: &Key, ask: Ask) -> Reply<Decision>;
    fn remembered_denial_boxed(&self, key: &Key, ask: Ask) -> Option<Decision>;
    fn forgive_boxed(&self, limit: &str, key: &Key) -> Reply<()>;
    fn set_boxed(&self, limit: &str, key: &Key, used: u64) -> Reply<()>;
    fn block_boxed(&self, limit: &str, key: &Key, span: Duration) -> Reply<()>;
    fn reset_boxed(&self, key: &Key) -> Reply<()>;
}

impl<Key: ?Sized, L: Limiter<Key> + Send + Sync> Erased<Key> for L {
    fn acquire_boxed(&self, key: &Key, ask: Ask) -> Acquire<BoxFuture<Result<Outcome, Error>>> {
        match self.acquire(key, ask) {
            Acquire::Ready(result) => Acquire::Ready(result),
            Acquire::Pending(future) => Acquire::Pending(Box::pin(future)),
        }
    }

    fn peek_boxed(&self, key: &Key, ask: Ask) -> Reply<Decision> {
        self.peek(key, ask)
    }

    fn remembered_denial_boxed(&self, key: &Key, ask: Ask) -> Option<Decision> {
        self.remembered_denial(key, ask)
    }

    fn forgive_boxed(&self, limit: &str, key: &Key) -> Reply<()> {
        self.forgive(limit, key)
    }

    fn set_boxed(&self, limit: &str, key: &Key, used: u64) -> Reply<()> {
        self.set(limit, key, used)
    }

    fn block_boxed(&self, limit: &str, key: &Key, span: Duration) -> Reply<()> {
        self.block(limit, key, span)
    }

    fn reset_boxed(&self, key: &Key) -> Reply<()> {
        self.reset(key)
    }
}
