//! An algorithm of one's own: so much a day, and what is left over is carried into the next days.
//!
//! ```text
//! cargo run --example custom_algorithm
//! ```
//!
//! Prints a phone's fortnight on a plan of 2 GB a day that carries over up to 10 GB. What does not fit is refused until
//! the midnight from which it does; what never fits is refused for good. The clock is moved by hand.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::{AcquireOptions, Error, LazySnapshot, LimitSnapshot, ManualClock, Memory, Timestamp};

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// `daily` (at least 1) more at each midnight UTC, of which at most `most` (at least 1) are kept. A new key has `most`.
#[derive(Debug)]
struct Allowance {
    daily: u64,
    most: u64,
}

/// The midnight at which all is paid back; what was owed after the last charge; the time of that.
type State = [u64; 3];

impl Allowance {
    /// What is owed, and the moment that it is owed at: now, or the newest time that the state has seen.
    fn owed(&self, &[full_at, owed, written_at]: &State, now: Timestamp) -> (u64, u64) {
        let now = now.as_micros();
        let at = now.max(written_at);
        // Such a large step back in time is a clock that was wrong once: the state is as new.
        if full_at <= at || Duration::from_micros(at - now) > self.max_reset() {
            return (0, now);
        }
        (owed.saturating_sub(self.daily.saturating_mul(at / DAY - written_at / DAY)), at)
    }

    fn state(&self, owed: u64, at: u64) -> State {
        if owed == 0 { [0; 3] } else { [self.paid_at(owed, at).as_micros(), owed, at] }
    }

    /// The midnight at which `amount` of what is owed at `at` is paid back.
    fn paid_at(&self, amount: u64, at: u64) -> Timestamp {
        Timestamp::from_micros((at / DAY).saturating_add(amount.div_ceil(self.daily)).saturating_mul(DAY))
    }
}

impl Algorithm for Allowance {
    type State = State;

    fn decide(&self, state: &State, now: Timestamp, options: ChargeOptions) -> Step<State> {
        let (owed, at) = self.owed(state, now);
        if !options.is_forced() {
            match self.most.checked_sub(options.cost) {
                None => return Step::Exceeds,
                Some(room) if owed > room => return Step::deny_for(self.paid_at(owed - room, at).since(now)),
                Some(_) => {}
            }
        }
        Step::Allow { next: self.state(owed.saturating_add(options.cost), at), delay: 0 }
    }

    fn snapshot(&self, state: &State, now: Timestamp) -> LazySnapshot {
        let (owed, at) = self.owed(state, now);
        let [reset, next_token_after] = [owed, owed.saturating_sub(self.most - 1).max(owed.min(1))]
            .map(|amount| if amount == 0 { Duration::ZERO } else { self.paid_at(amount, at).since(now) });
        let remaining = self.most.saturating_sub(owed);
        LimitSnapshot { limit: self.most, window: self.max_reset(), remaining, reset, next_token_after }.into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_micros(DAY.saturating_mul(self.most.div_ceil(self.daily)))
    }
}

fn main() -> Result<(), Error> {
    let clock = ManualClock::new();
    let plan = Memory::builder(Allowance { daily: 2, most: 10 }).clock(clock.clone()).build()?;
    for (day, gigabytes) in [(1, 3), (2, 1), (3, 6), (4, 4), (5, 3), (9, 7), (10, 6), (11, 12), (14, 10)] {
        clock.set(ManualClock::START.after(Duration::from_micros((day - 1) * DAY + 18 * HOUR)));
        let decision = plan.check("+49 170 555 01", AcquireOptions::cost(gigabytes));
        let left = decision.remaining().unwrap_or_default();
        println!("day {day:>2}: {gigabytes:>2} GB? {:?}, {left} GB left", decision.verdict());
    }
    Ok(())
}
