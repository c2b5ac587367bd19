//! The results of a limiter in memory, which decides immediately and never fails.

use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::{AcquireOptions, Limiter};

pub(crate) fn ready<T>(future: LimiterFuture<T>) -> T {
    future.try_ready().expect("memory decides immediately").expect("memory never fails")
}

pub(crate) fn acquire<Key: ?Sized>(
    limiter: &(impl Limiter<Key> + ?Sized),
    key: &Key,
    options: AcquireOptions,
) -> Outcome {
    ready(limiter.acquire(key, options))
}
