use std::time::Duration;

use redis::{Cmd, Value, from_redis_value};

use crate::clock::Timestamp;
use crate::decision::{Decision, LimitSnapshot, LimitStatus, Verdict};
use crate::error::Error;
use crate::quota::Quota;

/// The parameters of CL.THROTTLE, and the decision that a reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) burst: u64,
    pub(crate) count: u64,
    pub(crate) seconds: u64,
}

/// A reply to CL.THROTTLE. Times are whole seconds; `None` stands for the reply -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleReply {
    pub(crate) limited: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<u64>,
    pub(crate) reset_after: Option<u64>,
}

impl ThrottleReply {
    /// Reads the reply to CL.THROTTLE: five integers.
    pub(super) fn read(reply: Value) -> Result<Self, Error> {
        let (limited, _, remaining, retry_after, reset_after): (i64, i64, i64, i64, i64) = from_redis_value(reply)
            .map_err(|_| Error::unavailable("unexpected reply to CL.THROTTLE; check the version of redis-cell"))?;
        let seconds = |number| u64::try_from(number).ok();
        let (retry_after, reset_after) = (seconds(retry_after), seconds(reset_after));
        Ok(Self { limited: limited != 0, remaining: u64::try_from(remaining).unwrap_or(0), retry_after, reset_after })
    }
}

impl Rate {
    const SECOND: u64 = 1_000_000;
    /// The maximum time to refill the whole burst. The module stores nanoseconds since the epoch in 64 bits.
    const MAX_REFILL_YEARS: u64 = 100;

    pub(crate) fn new(quota: Quota, burst: u64) -> Result<Self, Error> {
        let period = quota.period();
        let rate = Self { burst, count: quota.limit(), seconds: period.as_secs() };
        let problem = if period.subsec_nanos() != 0 || period.is_zero() {
            format!(
                "quota for CL.THROTTLE: the period of {quota} is not whole seconds; use whole seconds, as in 10 per second \
                 instead of 1 per 100ms"
            )
        } else if rate.count == 0 {
            "quota for CL.THROTTLE: it is zero; use `Redis` for a limit of zero".to_owned()
        } else if burst == 0 {
            "burst: it is zero; use at least 1".to_owned()
        } else if rate.count > rate.seconds.saturating_mul(Self::SECOND) {
            // The module computes the remaining requests from microseconds, so one request must take at least one.
            format!("quota for CL.THROTTLE: {quota} is above one request per microsecond; use a lower rate")
        } else if rate.refill_time(burst) > Duration::from_secs(Self::MAX_REFILL_YEARS * 365 * 86_400) {
            let years = Self::MAX_REFILL_YEARS;
            format!(
                "burst for CL.THROTTLE: at {quota} a burst of {burst} refills in more than {years} years; use a smaller burst"
            )
        } else {
            return Ok(rate);
        };
        Err(Error::config(format!("invalid {problem}")))
    }

    /// Returns the command for a key and a quantity.
    pub(super) fn throttle(self, key: &[u8], quantity: u64) -> Cmd {
        let mut throttle = redis::cmd("CL.THROTTLE");
        // The command calls the burst without the first request `max_burst`.
        throttle.arg(key).arg(self.burst - 1).arg(self.count).arg(self.seconds).arg(quantity);
        throttle
    }

    /// The time in which `cost` refills, rounded up to a microsecond.
    fn refill_time(self, cost: u64) -> Duration {
        let micros = u128::from(cost) * u128::from(self.seconds) * u128::from(Self::SECOND);
        Duration::from_micros(u64::try_from(micros.div_ceil(u128::from(self.count))).unwrap_or(u64::MAX))
    }

    /// Returns the decision for a cost. For a peek the reply is that to a quantity of 0, which contains only what
    /// remains.
    pub(crate) fn decision(self, now: Timestamp, reply: ThrottleReply, cost: u64, is_peek: bool) -> Decision {
        let remaining = reply.remaining.min(self.burst);
        let used = self.burst - remaining;
        let reset = if used == 0 { Duration::ZERO } else { self.min_wait(used, reply.reset_after) };
        let verdict = if is_peek && remaining < cost {
            // A quantity of 0 is always allowed, so the verdict follows from what remains.
            let full_after = reply.reset_after.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
            let by_reset = full_after.map(|full| full.saturating_sub(self.refill_time(self.burst - cost)));
            let by_remaining = self.is_exact().then(|| self.refill_time(cost - remaining));
            let wait = by_reset.into_iter().chain(by_remaining).min().unwrap_or_else(|| self.refill_time(cost));
            Verdict::Denied { retry_after: wait.max(Duration::from_micros(1)) }
        } else if reply.limited {
            let missing = if remaining >= cost { cost } else { cost - remaining };
            match reply.retry_after {
                None => Verdict::ExceedsLimit,
                seconds => Verdict::Denied { retry_after: self.min_wait(missing, seconds) },
            }
        } else {
            Verdict::Allowed
        };
        let next_token_after = if used == 0 { Duration::ZERO } else { self.refill_time(1).min(reset) };
        let snapshot = LimitSnapshot::new(self.burst, self.refill_time(self.burst))
            .with_remaining(remaining)
            .with_reset(reset)
            .with_next_token_after(next_token_after);
        Decision::from_limit(now, LimitStatus::new("default", verdict, snapshot))
    }

    /// The minimum wait that is certainly sufficient.
    ///
    /// The module may have rounded its seconds down, so the wait is one second more. The remaining requests are rounded
    /// down, too, so at most the time of `cost` is missing. The smaller of the two is sufficient.
    fn min_wait(self, cost: u64, seconds: Option<u64>) -> Duration {
        let by_seconds = seconds.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
        let by_cost = self.is_exact().then(|| self.refill_time(cost));
        by_seconds.into_iter().chain(by_cost).min().unwrap_or_else(|| self.refill_time(self.burst))
    }

    /// Whether the remaining requests in a reply are exact: the module divides by whole microseconds.
    fn is_exact(self) -> bool {
        (u128::from(self.seconds) * u128::from(Self::SECOND)).is_multiple_of(u128::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Rate, ThrottleReply};
    use crate::clock::Timestamp;
    use crate::decision::Verdict;
    use crate::quota::Quota;

    fn verdict(quota: Quota, reply: ThrottleReply, cost: u64, is_peek: bool) -> Verdict {
        Rate::new(quota, quota.limit()).expect("a rate").decision(Timestamp::EPOCH, reply, cost, is_peek).verdict()
    }

    #[test]
    fn retry_after_is_sufficient_when_seconds_are_rounded_down() {
        let reply = ThrottleReply { limited: true, remaining: 0, retry_after: Some(0), reset_after: Some(0) };
        let wait = |millis| Verdict::Denied { retry_after: Duration::from_millis(millis) };
        assert_eq!(verdict(Quota::per_second(10), reply, 1, false), wait(100));
        // A third of a second is no whole number of microseconds: the module's snapshot are less exact then.
        assert_eq!(verdict(Quota::per_second(3), reply, 1, false), wait(1_000));
        let reply = ThrottleReply { limited: true, remaining: 2, retry_after: Some(5), reset_after: Some(47) };
        assert_eq!(verdict(Quota::per_minute(10), reply, 3, false), wait(6_000));
        assert_eq!(verdict(Quota::per_minute(10), reply, 3, true), wait(6_000));
    }

    #[test]
    fn peek_computes_the_wait_from_what_remains() {
        let reply = ThrottleReply { limited: false, remaining: 0, retry_after: None, reset_after: Some(58) };
        let wait = |seconds| Verdict::Denied { retry_after: Duration::from_secs(seconds) };
        assert_eq!(verdict(Quota::per_minute(6), reply, 1, true), wait(9));
        assert_eq!(verdict(Quota::per_minute(6), reply, 6, true), wait(59));
        assert_eq!(verdict(Quota::per_minute(6), reply, 0, true), Verdict::Allowed);
    }

    #[test]
    fn new_rejects_quotas_that_the_module_cannot_count() {
        let is_rejected = |quota, burst| Rate::new(quota, burst).is_err_and(|error| error.is_config());
        assert!(is_rejected(Quota::new(1, Duration::from_millis(100)), 1));
        assert!(is_rejected(Quota::new(1, Duration::from_millis(1_500)), 1));
        assert!(is_rejected(Quota::per_second(1_000_001), 1));
        assert!(is_rejected(Quota::per_day(1), 1 << 40));
        assert!(is_rejected(Quota::per_day(1), 0));
        assert!(!is_rejected(Quota::per_second(1_000_000), 1));
        assert!(!is_rejected(Quota::per_day(1), 1000));
    }
}
