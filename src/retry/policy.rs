use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;
use tower::retry::Policy;

use super::hint::{ReadRetryHint, ResponsesOnly, RetryHint};
use super::http::HttpHint;
use super::request::{ByClone, CloneRequest};
use crate::runtime::{Sleep, sleep};

/// A policy for tower's [`Retry`](tower::retry::Retry) that retries after the time that the server sends, never before.
///
/// By default the policy retries a request at most three times, waits at most one minute per retry and two minutes in
/// total. A response that demands a longer wait is final, because an earlier retry would be rejected. If a response
/// contains no time in the future, the policy waits for one second, and twice as long before each further retry.
///
/// The request must be `Clone`, including its body: `http_body_util::Full` is, a stream is not. For other requests,
/// such as reqwest's requests, [`clone_with`](Self::clone_with) sets a function.
#[derive(Clone, Debug)]
#[must_use = "a policy does nothing until it is passed to `Retry`"]
pub struct RetryAfter<R = HttpHint, C = ByClone> {
    reader: R,
    clone: C,
    bounds: RetryBounds,
    /// The retries of one request: `Retry` clones the policy for each request.
    retries: u32,
    waited: Duration,
}

#[derive(Clone, Copy, Debug)]
struct RetryBounds {
    max_retries: u32,
    max_wait: Duration,
    max_total_wait: Duration,
    jitter: Duration,
    initial_backoff: Duration,
}

/// Prevents a busy loop if the server sends a shorter time.
const MIN_WAIT: Duration = Duration::from_millis(10);

impl RetryAfter {
    /// Creates a policy that reads HTTP responses with [`HttpHint`].
    pub const fn new() -> Self {
        let bounds = RetryBounds {
            max_retries: 3,
            max_wait: Duration::from_secs(60),
            max_total_wait: Duration::from_secs(120),
            jitter: Duration::from_millis(250),
            initial_backoff: Duration::from_secs(1),
        };
        Self { reader: HttpHint, clone: ByClone, bounds, retries: 0, waited: Duration::ZERO }
    }
}

impl<R, C> RetryAfter<R, C> {
    /// Sets the reader of the responses: [`HttpHint`], `GrpcHint`, or a closure.
    ///
    /// The closure is a `Fn(&Request, Result<&Response, &Error>) -> RetryHint`.
    pub fn with_reader<Q>(self, reader: Q) -> RetryAfter<Q, C> {
        RetryAfter { reader, clone: self.clone, bounds: self.bounds, retries: self.retries, waited: self.waited }
    }

    /// Reads responses with a closure `Fn(&Request, &Response) -> RetryHint`. Errors are final.
    ///
    /// For clients with response types of their own, such as reqwest: see [`clone_with`](Self::clone_with).
    pub fn read_responses<F>(self, read: F) -> RetryAfter<ResponsesOnly<F>, C> {
        self.with_reader(ResponsesOnly(read))
    }

    /// Sets the function that clones requests, `Fn(&Request) -> Option<Request>`, for requests that are not `Clone`.
    ///
    /// A request for which the function returns `None` is sent once, and not retried.
    ///
    /// With reqwest, whose client is a tower service (`cargo run -p example-reqwest` also limits the client):
    ///
    #[cfg_attr(not(doctest), doc = include_str!("reqwest.md"))]
    pub fn clone_with<F>(self, clone: F) -> RetryAfter<R, F> {
        RetryAfter { reader: self.reader, clone, bounds: self.bounds, retries: self.retries, waited: self.waited }
    }

    /// Sets the maximum number of retries of a request. The default is 3.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.bounds.max_retries = retries;
        self
    }

    /// Sets the maximum wait before one retry. The default is one minute.
    ///
    /// A response that demands a longer wait is final.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.bounds.max_wait = max_wait;
        self
    }

    /// Sets the maximum total wait of a request. The default is two minutes.
    pub fn max_total_wait(mut self, max_total_wait: Duration) -> Self {
        self.bounds.max_total_wait = max_total_wait;
        self
    }

    /// Sets the maximum random time that is added to the server's time. The default is 250 ms.
    ///
    /// The jitter spreads the retries of clients that were rejected at the same time. The sum is at most
    /// [`max_wait`](Self::max_wait).
    pub fn jitter(mut self, max_jitter: Duration) -> Self {
        self.bounds.jitter = max_jitter;
        self
    }

    /// Sets the first wait after a response without a time. The default is one second.
    ///
    /// Each further wait is twice as long. A random part of up to one half is subtracted from each wait.
    pub fn initial_backoff(mut self, wait: Duration) -> Self {
        self.bounds.initial_backoff = wait;
        self
    }

    /// Returns the wait before the next retry and counts the retry, for custom retry loops. `None` forbids the retry.
    pub fn next_delay(&mut self, hint: RetryHint) -> Option<Duration> {
        let bounds = self.bounds;
        if self.retries >= bounds.max_retries {
            return None;
        }
        let wait = match hint {
            RetryHint::None => return None,
            RetryHint::After(wait) if wait > bounds.max_wait => return None,
            RetryHint::After(wait) => {
                let wait = wait.max(MIN_WAIT);
                wait + random_up_to(bounds.jitter.min(bounds.max_wait.saturating_sub(wait)))
            }
            RetryHint::Backoff => {
                let doubled = bounds.initial_backoff.saturating_mul(2_u32.saturating_pow(self.retries));
                let backoff = doubled.min(bounds.max_wait);
                backoff.saturating_sub(random_up_to(backoff / 2)).max(MIN_WAIT)
            }
        };
        let waited = self.waited.saturating_add(wait);
        if waited > bounds.max_total_wait {
            return None;
        }
        (self.retries, self.waited) = (self.retries + 1, waited);
        Some(wait)
    }
}

impl_default!(RetryAfter);

impl<Request, Response, Error, R, C> Policy<Request, Response, Error> for RetryAfter<R, C>
where
    R: ReadRetryHint<Request, Response, Error>,
    C: CloneRequest<Request>,
{
    type Future = RetryDelay;

    fn retry(&mut self, request: &mut Request, result: &mut Result<Response, Error>) -> Option<RetryDelay> {
        let hint = self.reader.read(request, result.as_ref());
        // Without a runtime there is no timer, so the response is final.
        self.next_delay(hint).and_then(sleep).map(RetryDelay)
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        self.clone.clone_request(request)
    }
}

/// The future of the wait before a retry.
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

/// Returns a random duration from zero to `max`.
fn random_up_to(max: Duration) -> Duration {
    Duration::from_nanos(fastrand::u64(0..=u64::try_from(max.as_nanos()).unwrap_or(u64::MAX)))
}
