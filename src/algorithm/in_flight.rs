use std::time::Duration;

use super::{Algorithm, ChargeOptions, ShareCapacity, ShareFamily, Step};
use crate::clock::{MAX_PERIOD_MICROS, Timestamp};
use crate::decision::{LazySnapshot, LimitSnapshot, Verdict};
use crate::error::Error;

/// A limit on requests in flight: at most `max` at once.
///
/// ![One request per second that takes six seconds, or two, with at most three in flight][picture-in-flight]
///
#[doc = include_str!("../../docs/pictures/in-flight.md")]
///
/// The limit does not count requests per time. A store [holds](crate::limiter::Held) the cost of a request from its
/// start to its end, and charges nothing. With rates in one limiter, one decision charges the rates and holds the
/// cost here, or does neither.
///
/// - **Closed form**, with `H` as the sum of the held costs: admit if `cost + H <= max`; `remaining = max - H`.
/// - **Bound**: the costs of the requests in flight are never above `max` at any time.
/// - **State**: none. [`reset`](crate::Limiter::reset) and `set_usage` change nothing, because they do not end requests.
/// - **Retry after**: unknown, because the end of a request cannot be predicted. A denial has one second, as an
///   [estimate](crate::Decision::is_estimate). In the [layer's queue](crate::RateLimitLayer::max_wait) a waiting request
///   starts as soon as another one ends.
/// - **Headers**: `RateLimit-Policy` has `qu="concurrent-requests"` and no window.
/// - **Choose it** for slow requests, streams, connections, jobs. A rate does not bound how many of them overlap.
///
/// # In the layer
///
/// The end of a request is not the end of the service's future: the response's body may stream for hours. So the layer
/// must track the end: [`release_on_body_end`](crate::RateLimitLayer::release_on_body_end) for HTTP and gRPC, or
/// [`release_on_response`](crate::RateLimitLayer::release_on_response) for services without a body. Without one of them,
/// the limiter returns an error for every request, and the layer answers with status 500.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Gcra, InFlight, Limit, Memory, PeerIp, Quota, RateLimitLayer};
///
/// // A hundred a minute, and two at once.
/// let limiter = Memory::new((
///     Limit::new("minute", Gcra::new(Quota::per_minute(100))),
///     Limit::new("streams", InFlight::new(2)),
/// ));
/// let app: Router = Router::new()
///     .route("/events", get(async || "a long stream"))
///     .layer(RateLimitLayer::new(PeerIp::new(), limiter).release_on_body_end());
/// ```
///
/// # Without the layer
///
/// The guard holds the cost until it is dropped:
///
/// ```
/// use tower_ratelimit::{AcquireOptions, InFlight, Limiter, Memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Memory::new(InFlight::new(1));
/// let job = limiter.acquire("alice", AcquireOptions::default().keep_guard()).await?;
/// let denied = limiter.acquire("alice", AcquireOptions::default().keep_guard()).await?;
/// assert!(job.held.is_some() && denied.decision.is_estimate());
///
/// drop(job);
/// assert!(limiter.acquire("alice", AcquireOptions::default().keep_guard()).await?.decision.is_allowed());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "concurrency")]
#[doc(alias = "semaphore")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct InFlight {
    max: u64,
    /// In microseconds, 0 for none.
    max_duration: u64,
}

impl InFlight {
    /// The wait that a denial estimates, in microseconds.
    const RETRY_AFTER: u64 = 1_000_000;
    /// Doubles represent every integer below it, and Redis computes with doubles.
    const MAX: u64 = 1 << 53;
    const INVALID_MAX: &str = "requests in flight: `max` must be below 2^53; choose a lower maximum";
    const INVALID_DURATION: &str =
        "requests in flight: `max_duration` must be from 1 us up to 200 years; choose a time between them";

    /// Creates a limit of `max` requests in flight, or of requests with the costs `max` in total. With 0 every request
    /// exceeds the limit.
    ///
    /// # Panics
    ///
    /// Panics if `max` is 2^53 or more. In a `const` the compiler reports the panic. [`try_new`](Self::try_new)
    /// never panics.
    #[track_caller]
    pub const fn new(max: u64) -> Self {
        assert!(max < Self::MAX, "{}", Self::INVALID_MAX);
        Self { max, max_duration: 0 }
    }

    /// Creates the same limit as [`new`](Self::new), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is 2^53 or more.
    pub fn try_new(max: u64) -> Result<Self, Error> {
        if max < Self::MAX { Ok(Self::new(max)) } else { Err(Error::config(Self::INVALID_MAX)) }
    }

    /// Stops counting a request after this time, also if it has not ended. The request itself runs on.
    ///
    /// Requests end by themselves, so this is for requests whose end the server does not notice: the client of an idle
    /// stream has disconnected, and the server has no keep-alive. Choose a longer time than any request takes. Redis
    /// stops counting up to half a second later, and a hold with an id up to a quarter of the time later. In memory, a
    /// decision also ends the overdue requests of the other keys in its shard, so that they keep no slots.
    ///
    /// # Panics
    ///
    /// Panics if the time is shorter than a microsecond, or longer than 200 years. In a `const` the compiler reports
    /// the panic. [`try_max_duration`](Self::try_max_duration) never panics.
    #[track_caller]
    pub const fn max_duration(self, max_duration: Duration) -> Self {
        let micros = max_duration.as_micros();
        assert!(micros > 0 && micros <= MAX_PERIOD_MICROS as u128, "{}", Self::INVALID_DURATION);
        #[allow(clippy::cast_possible_truncation, reason = "checked above")]
        Self { max: self.max, max_duration: micros as u64 }
    }

    /// Sets the same time as [`max_duration`](Self::max_duration), and never panics.
    ///
    /// # Errors
    ///
    /// Returns an error if the time is shorter than a microsecond, or longer than 200 years.
    pub fn try_max_duration(self, max_duration: Duration) -> Result<Self, Error> {
        let is_valid = (1..=MAX_PERIOD_MICROS.into()).contains(&max_duration.as_micros());
        if is_valid { Ok(self.max_duration(max_duration)) } else { Err(Error::config(Self::INVALID_DURATION)) }
    }

    /// Returns the maximum.
    pub const fn max(&self) -> u64 {
        self.max
    }

    const fn verdict(&self, cost: u64, held: u64) -> Verdict {
        if cost > self.max {
            Verdict::ExceedsLimit
        } else if cost.saturating_add(held) > self.max {
            Verdict::Denied { retry_after: Duration::from_micros(Self::RETRY_AFTER) }
        } else {
            Verdict::Allowed
        }
    }

    fn snapshot_with_held(&self, held: u64) -> LazySnapshot {
        LazySnapshot::new([self.max, held, 0, 0, 0], |&[max, held, ..]| {
            LimitSnapshot::new(max, None).with_remaining(max.saturating_sub(held))
        })
    }
}

impl Algorithm for InFlight {
    /// Always zero.
    type State = [u64; 1];

    const HELD_UNTIL_END: bool = true;

    fn decide(&self, _state: &[u64; 1], _now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
        if !options.is_forced() && options.cost > self.max {
            Step::Exceeds
        } else {
            Step::Allow { next: [0], delay: 0 }
        }
    }

    fn snapshot(&self, _state: &[u64; 1], _now: Timestamp) -> LazySnapshot {
        self.snapshot_with_held(0)
    }

    fn max_reset(&self) -> Duration {
        Duration::ZERO
    }

    fn max_hold_duration(&self) -> Option<Duration> {
        (self.max_duration > 0).then(|| Duration::from_micros(self.max_duration))
    }

    fn share_capacity(&self) -> Option<ShareCapacity> {
        let family = ShareFamily::Flights { max_duration: self.max_duration };
        // Requests in flight have no rate.
        Some(ShareCapacity { family, limit: 0, period: 0, max: self.max })
    }

    fn peek_with_held(
        &self,
        _state: &[u64; 1],
        _now: Timestamp,
        options: ChargeOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        (self.verdict(options.cost, held), self.snapshot_with_held(held))
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for InFlight {
    const SCRIPT: super::LuaScript = super::LuaScript::new("in_flight1", include_str!("in_flight.lua"))
        .with_fast_path(concat!(include_str!("in_flight_fast.lua"), include_str!("fast_holds.lua")));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.max, cost]);
    }

    fn uses_fast_path(&self, options: crate::decision::AcquireOptions) -> bool {
        options.cost > 0 && options.cost <= self.max
    }
}
