use std::time::Duration;

use crate::clock::Timestamp;
use crate::decision::{Decision, LimitSnapshot, LimitStatus, Verdict};
use crate::error::Error;
use crate::quota::Quota;

/// What `CL.THROTTLE` is told, and what its replies come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) burst: u64,
    pub(crate) count: u64,
    pub(crate) seconds: u64,
}

/// A reply: whether it is refused, what is left, and whole seconds, -1 where nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) limited: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<u64>,
    pub(crate) reset_after: Option<u64>,
}

impl Rate {
    const SECOND: u64 = 1_000_000;
    /// From empty to full, at most: the module counts nanoseconds since the epoch, in 64 bits.
    const LONGEST_YEARS: u64 = 100;

    pub(crate) fn new(quota: Quota, burst: u64) -> Result<Self, Error> {
        let period = quota.period();
        if period.subsec_nanos() != 0 || period.is_zero() {
            return Err(Error::config(format!(
                "CL.THROTTLE counts in whole seconds, and {quota} does not: give a period of whole seconds, as in 10 per \
                 second in place of 1 per 100ms"
            )));
        }
        let rate = Self { burst, count: quota.limit(), seconds: period.as_secs() };
        if burst == 0 {
            return Err(Error::config("a burst of zero refuses everything"));
        }
        // The module divides the period in nanoseconds, and works out what is left from microseconds.
        if rate.count > rate.seconds.saturating_mul(Self::SECOND) {
            return Err(Error::config(format!("{quota} is too fast for CL.THROTTLE: one in a microsecond at most")));
        }
        if rate.time_of(burst) > Duration::from_secs(Self::LONGEST_YEARS * 365 * 86_400) {
            return Err(Error::config(format!(
                "a burst of {burst} takes more than {} years to come back at {quota}: too long for CL.THROTTLE",
                Self::LONGEST_YEARS
            )));
        }
        Ok(rate)
    }

    /// How long so many take to come back, rounded up to a microsecond.
    fn time_of(self, cost: u64) -> Duration {
        let micros = u128::from(cost) * u128::from(self.seconds) * u128::from(Self::SECOND);
        Duration::from_micros(u64::try_from(micros.div_ceil(u128::from(self.count))).unwrap_or(u64::MAX))
    }

    /// What would never fit is known without asking: to that, too, the module says -1.
    pub(crate) fn fits(self, cost: u64) -> bool {
        cost <= self.burst
    }

    /// What a reply to so much means.
    pub(crate) fn decision(self, now: Timestamp, told: Told, cost: u64, is_peek: bool) -> Decision {
        let remaining = told.remaining.min(self.burst);
        let used = self.burst - remaining;
        let reset = if used == 0 { Duration::ZERO } else { self.at_most(used, told.reset_after) };
        let verdict = if is_peek && remaining < cost {
            // It was asked for nothing, which always passes: what was asked here is worked out.
            let full_after = told.reset_after.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
            let by_reset = full_after.map(|full| full.saturating_sub(self.time_of(self.burst - cost)));
            let by_remaining = self.is_exact().then(|| self.time_of(cost - remaining));
            let wait = by_reset.into_iter().chain(by_remaining).min().unwrap_or_else(|| self.time_of(cost));
            Verdict::Denied { retry_after: wait.max(Duration::from_micros(1)) }
        } else if told.limited {
            match told.retry_after {
                None => Verdict::ExceedsLimit,
                Some(_) if remaining >= cost => Verdict::Denied { retry_after: self.at_most(cost, told.retry_after) },
                Some(_) => Verdict::Denied { retry_after: self.at_most(cost - remaining, told.retry_after) },
            }
        } else {
            Verdict::Allowed
        };
        let next_token_after = if used == 0 { Duration::ZERO } else { self.time_of(1).min(reset) };
        let figures =
            LimitSnapshot { limit: self.burst, window: self.time_of(self.burst), remaining, reset, next_token_after };
        Decision::from_limit(now, LimitStatus::new("default", verdict, figures))
    }

    /// The least that is surely enough: whole seconds may have been rounded down, so it is one more; what is left was rounded
    /// down too, so no more than the time of `cost` is missing.
    fn at_most(self, cost: u64, seconds: Option<u64>) -> Duration {
        let by_seconds = seconds.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
        let by_cost = self.is_exact().then(|| self.time_of(cost));
        by_seconds.into_iter().chain(by_cost).min().unwrap_or_else(|| self.time_of(self.burst))
    }

    /// Whether what the module says is left can be relied upon: it divides by whole microseconds.
    fn is_exact(self) -> bool {
        (u128::from(self.seconds) * u128::from(Self::SECOND)).is_multiple_of(u128::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Rate, Told};
    use crate::clock::Timestamp;
    use crate::decision::Verdict;
    use crate::quota::Quota;

    fn verdict(quota: Quota, told: Told, cost: u64, is_peek: bool) -> Verdict {
        Rate::new(quota, quota.limit()).expect("a rate").decision(Timestamp::EPOCH, told, cost, is_peek).verdict()
    }

    #[test]
    fn a_wait_is_enough_though_seconds_are_rounded_down() {
        let told = Told { limited: true, remaining: 0, retry_after: Some(0), reset_after: Some(0) };
        let wait = |millis| Verdict::Denied { retry_after: Duration::from_millis(millis) };
        assert_eq!(verdict(Quota::per_second(10), told, 1, false), wait(100));
        // A third of a second is no whole number of microseconds: the module's figures are less exact then.
        assert_eq!(verdict(Quota::per_second(3), told, 1, false), wait(1_000));
        let told = Told { limited: true, remaining: 2, retry_after: Some(5), reset_after: Some(47) };
        assert_eq!(verdict(Quota::per_minute(10), told, 3, false), wait(6_000));
        assert_eq!(verdict(Quota::per_minute(10), told, 3, true), wait(6_000));
    }

    #[test]
    fn what_it_says_of_a_peek_is_worked_out() {
        let told = Told { limited: false, remaining: 0, retry_after: None, reset_after: Some(58) };
        let wait = |seconds| Verdict::Denied { retry_after: Duration::from_secs(seconds) };
        assert_eq!(verdict(Quota::per_minute(6), told, 1, true), wait(9));
        assert_eq!(verdict(Quota::per_minute(6), told, 6, true), wait(59));
        assert_eq!(verdict(Quota::per_minute(6), told, 0, true), Verdict::Allowed);
    }

    #[test]
    fn what_the_module_can_not_count_is_refused() {
        let refused = |quota, burst| Rate::new(quota, burst).is_err_and(|error| error.is_config());
        assert!(refused(Quota::new(1, Duration::from_millis(100)), 1));
        assert!(refused(Quota::new(1, Duration::from_millis(1_500)), 1));
        assert!(refused(Quota::per_second(1_000_001), 1));
        assert!(refused(Quota::per_day(1), 1 << 40));
        assert!(refused(Quota::per_day(1), 0));
        assert!(!refused(Quota::per_second(1_000_000), 1));
        assert!(!refused(Quota::per_day(1), 1000));
    }
}
