use std::hash::Hash;

use super::caller::Caller;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limiter::Limiter;

/// Waits until the limiter allows a cost, and charges the key. For code without the middleware: jobs, messages.
///
/// The callers of one limit wait in order of arrival, as the [module](crate::waiting) says. If the caller drops the future,
/// its start goes to the next caller, and nothing is charged for it.
///
/// [`AcquireOptions::max_delay`] bounds the wait, by default to a year. The returned decision is a denial if the cost
/// [exceeds the limit](Decision::exceeds_limit), or if the wait would be longer than that bound. The function then
/// returns as soon as that is known. The [delay](Decision::delay) of an allowed decision is the time that the caller has
/// waited: the request may start now.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::waiting::until_ready;
/// use tower_ratelimit::{Gcra, Memory, Quota, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).burst(1)).clock(TokioClock::new()).build()?;
/// let started = tokio::time::Instant::now();
/// for _ in 0..5 {
///     until_ready(&limiter, "alice", 1).await?;
/// }
/// assert_eq!(started.elapsed(), Duration::from_millis(400));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns the limiter's error; an error for which [`is_config`](Error::is_config) holds outside of a tokio runtime with a
/// timer; and an error for which [`is_unsupported`](Error::is_unsupported) holds if the options ask for a hold.
pub async fn until_ready<Key, L>(limiter: &L, key: &Key, options: impl Into<AcquireOptions>) -> Result<Decision, Error>
where
    Key: Hash + ToOwned<Owned: Send + Sync + 'static> + ?Sized + 'static,
    L: Limiter<Key> + Clone,
{
    Caller::<Key::Owned, Key, L>::new(limiter.clone(), key.to_owned()).until_ready(options.into()).await
}
