use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;
use tower::retry::Policy;

use super::hint::{ReadRetryHint, RetryHint};
use super::http::HttpHint;
use super::request::{ByClone, CloneRequest};
use crate::runtime::{Sleep, sleep};

/// A policy for tower's [`Retry`](tower::retry::Retry): asks again when it is told to, and never sooner.
///
/// For one request it asks at most three times again, waits at most a minute at a time and two minutes in all, unless
/// it is told otherwise. An answer that says to wait for longer is final, and handed on: to come back sooner would be
/// no use. Where it is not said when to come back, it waits for a second, and then twice as long each time.
///
/// The request must be `Clone`, its body included: `http_body_util::Full` is, a stream is not. For other requests,
/// such as those of reqwest, [`clone_with`](Self::clone_with) sets a function.
#[derive(Clone, Debug)]
#[must_use = "a policy does nothing until `Retry` has it"]
pub struct RetryAfter<R = HttpHint, C = ByClone> {
    read: R,
    clone: C,
    bounds: RetryBounds,
    /// Of this request: `Retry` clones the policy for each.
    retries: u32,
    waited: Duration,
}

#[derive(Clone, Copy, Debug)]
struct RetryBounds {
    retries: u32,
    one_wait: Duration,
    all_waits: Duration,
    jitter: Duration,
    initial_backoff: Duration,
}

/// However soon a server says: no loop without a pause.
const SHORTEST: Duration = Duration::from_millis(10);

impl RetryAfter {
    /// Reads HTTP answers, by [`HttpHint`].
    pub const fn new() -> Self {
        let bounds = RetryBounds {
            retries: 3,
            one_wait: Duration::from_secs(60),
            all_waits: Duration::from_secs(120),
            jitter: Duration::from_millis(250),
            initial_backoff: Duration::from_secs(1),
        };
        Self { read: HttpHint, clone: ByClone, bounds, retries: 0, waited: Duration::ZERO }
    }
}

impl<R, C> RetryAfter<R, C> {
    /// Sets what reads the answers: `GrpcHint`, or a closure.
    pub fn reading<Q>(self, read: Q) -> RetryAfter<Q, C> {
        RetryAfter { read, clone: self.clone, bounds: self.bounds, retries: self.retries, waited: self.waited }
    }

    /// Sets the function that clones requests, `Fn(&Request) -> Option<Request>`, for requests that are not `Clone`.
    ///
    /// A request for which the function returns `None` is sent once, and not retried.
    ///
    /// With reqwest, whose client is a tower service:
    ///
    /// ```
    /// use tower::{Service, ServiceBuilder, ServiceExt};
    /// use tower_ratelimit::retry::{HttpHint, RetryAfter, RetryHint};
    ///
    /// fn read(request: &reqwest::Request, answer: Result<&reqwest::Response, &reqwest::Error>) -> RetryHint {
    ///     let Ok(response) = answer else { return RetryHint::None };
    ///     HttpHint.read_response(Some(request.method()), response.status(), response.headers())
    /// }
    ///
    /// async fn get(url: &str) -> Result<reqwest::Response, reqwest::Error> {
    ///     let policy = RetryAfter::new().reading(read).clone_with(reqwest::Request::try_clone);
    ///     let client = reqwest::Client::new();
    ///     let request = client.get(url).build()?;
    ///     ServiceBuilder::new().retry(policy).service(client).ready().await?.call(request).await
    /// }
    /// ```
    pub fn clone_with<F>(self, clone: F) -> RetryAfter<R, F> {
        RetryAfter { read: self.read, clone, bounds: self.bounds, retries: self.retries, waited: self.waited }
    }

    /// Sets how often it asks again: by default three times.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.bounds.retries = retries;
        self
    }

    /// Sets for how long it waits at a time: by default a minute. What is told to wait for longer is not asked again.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.bounds.one_wait = longest;
        self
    }

    /// Sets for how long one request waits in all: by default two minutes.
    pub fn max_total_wait(mut self, longest: Duration) -> Self {
        self.bounds.all_waits = longest;
        self
    }

    /// Sets by how much later than told it comes, at most, at random: by default a quarter of a second. So not all that
    /// were refused together come back together. It never comes sooner.
    pub fn jitter(mut self, latest: Duration) -> Self {
        self.bounds.jitter = latest;
        self
    }

    /// Sets how long it waits first where it isn't told: by default a second. The next waits are twice as long each,
    /// and each is shorter by up to a half at random.
    pub fn initial_backoff(mut self, wait: Duration) -> Self {
        self.bounds.initial_backoff = wait;
        self
    }

    /// How long to wait before the next try, if there is to be one: for loops of your own. It counts the tries.
    pub fn next_delay(&mut self, told: RetryHint) -> Option<Duration> {
        let bounds = self.bounds;
        if self.retries >= bounds.retries {
            return None;
        }
        let wait = match told {
            RetryHint::None => return None,
            RetryHint::After(wait) if wait > bounds.one_wait => return None,
            RetryHint::After(wait) => wait.max(SHORTEST).saturating_add(up_to(bounds.jitter)),
            RetryHint::Backoff => {
                let doubled = bounds.initial_backoff.saturating_mul(2_u32.saturating_pow(self.retries));
                let longest = doubled.min(bounds.one_wait);
                longest.saturating_sub(up_to(longest / 2)).max(SHORTEST)
            }
        };
        let waited = self.waited.saturating_add(wait);
        if waited > bounds.all_waits {
            return None;
        }
        (self.retries, self.waited) = (self.retries + 1, waited);
        Some(wait)
    }
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self::new()
    }
}

impl<Request, Response, Error, R, C> Policy<Request, Response, Error> for RetryAfter<R, C>
where
    R: ReadRetryHint<Request, Response, Error>,
    C: CloneRequest<Request>,
{
    type Future = RetryDelay;

    fn retry(&mut self, request: &mut Request, answer: &mut Result<Response, Error>) -> Option<RetryDelay> {
        let told = self.read.read(request, answer.as_ref());
        // Without a runtime there is nothing to wait with: the answer is handed on.
        self.next_delay(told).and_then(sleep).map(RetryDelay)
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        self.clone.clone_request(request)
    }
}

/// The time until the next try.
#[pin_project]
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct RetryDelay(#[pin] Sleep);

impl Future for RetryDelay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().0.poll(cx)
    }
}

/// Anything from nothing to so much.
fn up_to(longest: Duration) -> Duration {
    Duration::from_nanos(fastrand::u64(0..=u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)))
}
