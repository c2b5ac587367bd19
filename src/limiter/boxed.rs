use std::sync::Arc;

use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::decision::{AcquireOptions, Decision};

/// A limiter of any type, for limiters that are chosen at run time. Clones share the limiter.
///
/// For operations that only the store has, such as
/// [`Memory::usage`](crate::Memory::usage) and [`Memory::top_keys`](crate::Memory::top_keys), keep a clone of the store.
///
/// ```
/// use tower_ratelimit::{BoxLimiter, FixedWindow, Gcra, Memory, Quota};
///
/// let smooth = std::env::args().count() > 1;
/// let quota = Quota::per_minute(100);
/// let limiter: BoxLimiter<str> = if smooth {
///     BoxLimiter::new(Memory::new(Gcra::new(quota)))
/// } else {
///     BoxLimiter::new(Memory::new(FixedWindow::new(quota)))
/// };
/// ```
pub struct BoxLimiter<Key: ?Sized>(Arc<dyn Limiter<Key>>);

impl<Key: ?Sized> BoxLimiter<Key> {
    /// Boxes a limiter.
    pub fn new(limiter: impl Limiter<Key>) -> Self {
        Self(Arc::new(limiter))
    }
}

impl<Key: ?Sized + 'static> Limiter<Key> for BoxLimiter<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.0.acquire(key, options)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.0.peek(key, options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.0.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.0.administer(key, operation)
    }
}

impl_clone!([Key: ?Sized] BoxLimiter<Key> { 0 });

impl_debug!([Key: ?Sized] BoxLimiter<Key> {});
