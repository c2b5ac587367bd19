//! A custom algorithm: a daily allowance whose unused part carries over to the next days.
//!
//! ```text
//! cargo run --example custom_algorithm
//! ```
//!
//! Prints two weeks of a mobile data plan with 2 GB per day that keeps up to 10 GB. A request that does not fit is
//! denied until the midnight at which it fits. A request for more than 10 GB exceeds the limit. The example uses a
//! manual clock.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::{AcquireOptions, Error, LazySnapshot, LimitSnapshot, ManualClock, Memory, Timestamp};

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// Adds `daily` (at least 1) at each midnight UTC, up to `max` (at least 1). A new key has `max`.
#[derive(Debug)]
struct Allowance {
    daily: u64,
    max: u64,
}

/// The midnight at which the usage is zero again; the usage after the last charge; the time of the last charge.
type State = [u64; 3];

impl Allowance {
    /// Returns the usage, and its time: `now`, or the newest time in the state if the clock stepped back.
    fn usage(&self, &[idle_at, used, charged_at]: &State, now: Timestamp) -> (u64, u64) {
        let now = now.as_micros();
        let at = now.max(charged_at);
        // A larger step back means that the clock was wrong before: the key counts as idle.
        if idle_at <= at || Duration::from_micros(at - now) > self.max_reset() {
            return (0, now);
        }
        (used.saturating_sub(self.daily.saturating_mul(at / DAY - charged_at / DAY)), at)
    }

    fn state(&self, used: u64, at: u64) -> State {
        if used == 0 { [0; 3] } else { [self.restored_at(used, at).as_micros(), used, at] }
    }

    /// Returns the midnight at which `amount` of the usage at `at` is available again.
    fn restored_at(&self, amount: u64, at: u64) -> Timestamp {
        Timestamp::from_micros((at / DAY).saturating_add(amount.div_ceil(self.daily)).saturating_mul(DAY))
    }
}

impl Algorithm for Allowance {
    type State = State;

    fn decide(&self, state: &State, now: Timestamp, options: ChargeOptions) -> Step<State> {
        let (used, at) = self.usage(state, now);
        if !options.is_forced() {
            match self.max.checked_sub(options.cost) {
                None => return Step::Exceeds,
                Some(left) if used > left => {
                    return Step::deny_for(self.restored_at(used - left, at).saturating_since(now));
                }
                Some(_) => {}
            }
        }
        Step::Allow { next: self.state(used.saturating_add(options.cost), at), delay: 0 }
    }

    fn snapshot(&self, state: &State, now: Timestamp) -> LazySnapshot {
        let (used, at) = self.usage(state, now);
        let [reset, next_token_after] = [used, used.saturating_sub(self.max - 1).max(used.min(1))].map(|amount| {
            if amount == 0 { Duration::ZERO } else { self.restored_at(amount, at).saturating_since(now) }
        });
        let remaining = self.max.saturating_sub(used);
        let idle = LimitSnapshot::new(self.max, self.max_reset());
        idle.with_remaining(remaining).with_reset(reset).with_next_token_after(next_token_after).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_micros(DAY.saturating_mul(self.max.div_ceil(self.daily)))
    }
}

fn main() -> Result<(), Error> {
    let clock = ManualClock::new();
    let plan = Memory::builder(Allowance { daily: 2, max: 10 }).clock(clock.clone()).build()?;
    for (day, gigabytes) in [(1, 3), (2, 1), (3, 6), (4, 4), (5, 3), (9, 7), (10, 6), (11, 12), (14, 10)] {
        clock.set(ManualClock::START.saturating_add(Duration::from_micros((day - 1) * DAY + 18 * HOUR)));
        let decision = plan.check("+49 170 555 01", AcquireOptions::cost(gigabytes));
        let left = decision.remaining().unwrap_or_default();
        println!("day {day:>2}: {gigabytes:>2} GB? {:?}, {left} GB left", decision.verdict());
    }
    Ok(())
}
