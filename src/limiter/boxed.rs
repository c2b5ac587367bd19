use std::fmt;
use std::sync::Arc;

use super::future::{Acquisition, BoxFuture, LimiterFuture};
use super::{AdminOperation, Limiter, LimitsOfKey, Outcome, limiter_methods};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;

/// A limiter of any type, for limiters that are chosen at run time. Clones share the limiter.
///
/// Only pending decisions are boxed; immediate decisions are not. For operations that only the store has, such as
/// [`Memory::usage`](crate::Memory::usage) and [`Memory::top_keys`](crate::Memory::top_keys), keep a clone of the store.
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
    pub fn new(limiter: impl Limiter<Key>) -> Self {
        Self(Arc::new(limiter))
    }

    limiter_methods!(Key);
}

impl<Key: ?Sized + 'static> Limiter<Key> for BoxLimiter<Key> {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, key: &Key, options: AcquireOptions) -> Acquisition<Self::Future> {
        self.0.acquire_boxed(key, options)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.0.peek_boxed(key, options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.0.limits_of_erased(key, limits);
    }

    fn visit_units(&self, visit: &mut dyn FnMut(&'static str)) {
        self.0.visit_units_erased(visit);
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

/// A [`Limiter`] without its associated future type, so that a trait object is possible.
trait ErasedLimiter<Key: ?Sized>: Send + Sync {
    fn acquire_boxed(&self, key: &Key, options: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>>;
    fn peek_boxed(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision>;
    fn limits_of_erased(&self, key: &Key, limits: &mut LimitsOfKey<'_>);
    fn visit_units_erased(&self, visit: &mut dyn FnMut(&'static str));
    fn administer_boxed(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()>;
}

impl<Key: ?Sized, L: Limiter<Key>> ErasedLimiter<Key> for L {
    fn acquire_boxed(&self, key: &Key, options: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>> {
        match self.acquire(key, options) {
            Acquisition::Ready(result) => Acquisition::Ready(result),
            Acquisition::Pending(future) => Acquisition::Pending(Box::pin(future)),
        }
    }

    fn peek_boxed(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.peek(key, options)
    }

    fn limits_of_erased(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limits_of(key, limits);
    }

    fn visit_units_erased(&self, visit: &mut dyn FnMut(&'static str)) {
        self.visit_units(visit);
    }

    fn administer_boxed(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.administer(key, operation)
    }
}
