//! When a queue asks the limiter, and how many asks are under way.

use std::time::Duration;

use super::sharing::Sharing;
use crate::runtime::Instant;

/// The pace of the asks of one queue.
///
/// The number of asks under way doubles with an admission and falls to one with a denial, so that a limiter behind a
/// long link serves its whole rate, and one that denies is not asked in vain.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) in_flight: usize,
    /// The cost of the asks under way.
    pub(super) in_flight_cost: u64,
    /// Whether an ask under way may book a start beyond the horizon.
    is_booking: bool,
    /// How many asks that might book were denied in a row.
    denied_bookings: u32,
    /// The time of the next ask after a denial.
    pub(super) not_before: Option<Instant>,
    /// Whether capacity was released since the last denial, so that known starts do not tell when to ask.
    pub(super) is_released: bool,
    /// Whether capacity may have been released between the denial of a request and its joining. The queue then asks,
    /// even if another queue has an earlier request.
    pub(super) is_unsure: bool,
    /// Counts the releases of capacity in this process.
    pub(super) releases: u64,
    max_in_flight: usize,
    /// The next interval for waits that are estimates.
    recheck: Duration,
    random: u64,
    /// A moving average of the time that an ask takes.
    ask_time: Duration,
    sharing: Sharing,
}

/// When a limiter that has denied an ask may admit another.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryAfter {
    pub(super) wait: Duration,
    pub(super) is_estimate: bool,
    /// The time between two starts.
    pub(super) interval: Duration,
}

impl Pace {
    const MAX_IN_FLIGHT: usize = 512;
    /// The first interval after a denial whose wait is an estimate. It doubles with each further one.
    const MIN_RECHECK: Duration = Duration::from_millis(100);
    /// The maximum time between asks: another process may reset, unblock or release.
    const MAX_RECHECK: Duration = Duration::from_secs(1);

    pub(super) fn new(seed: u64) -> Self {
        Self {
            in_flight: 0,
            in_flight_cost: 0,
            is_booking: false,
            denied_bookings: 0,
            not_before: None,
            is_released: false,
            is_unsure: false,
            releases: 0,
            max_in_flight: 1,
            recheck: Self::MIN_RECHECK,
            random: seed,
            ask_time: Duration::ZERO,
            sharing: Sharing::default(),
        }
    }

    pub(super) fn may_ask(&self) -> bool {
        self.in_flight < self.max_in_flight
    }

    /// Whether the next ask may book a start. After two denials another ask learns when the next start is possible.
    pub(super) fn may_book(&self) -> bool {
        !self.is_booking && self.denied_bookings < 2
    }

    pub(super) fn asked(&mut self, cost: u64, books: bool) {
        self.in_flight += 1;
        self.in_flight_cost = self.in_flight_cost.saturating_add(cost);
        self.is_booking |= books;
    }

    /// Takes back an ask that was not sent.
    pub(super) fn withdrawn(&mut self, cost: u64, books: bool) {
        self.in_flight -= 1;
        self.in_flight_cost = self.in_flight_cost.saturating_sub(cost);
        self.is_booking &= !books;
    }

    /// Sends no ask for this time.
    pub(super) fn postpone(&mut self, time: Duration, now: Instant) {
        self.is_released = false;
        self.not_before = now.checked_add(time.min(Self::MAX_RECHECK));
    }

    pub(super) fn answered(&mut self, cost: u64, books: bool) {
        self.withdrawn(cost, books);
        self.denied_bookings = if books { self.denied_bookings + 1 } else { 0 };
    }

    /// Gives up all asks under way.
    pub(super) fn abort(&mut self) {
        (self.in_flight, self.in_flight_cost, self.is_booking) = (0, 0, false);
    }

    /// Records the time that an ask took.
    pub(super) fn took(&mut self, time: Duration) {
        self.ask_time = if self.ask_time.is_zero() { time } else { (self.ask_time * 7 + time) / 8 };
    }

    /// Returns the time that an ask takes.
    pub(super) fn ask_time(&self) -> Duration {
        self.ask_time
    }

    /// Returns how far ahead to ask so that the answer arrives before the start.
    pub(super) fn lead(&self) -> Duration {
        self.ask_time * 2
    }

    pub(super) fn admitted(&mut self) {
        self.max_in_flight = (self.max_in_flight * 2).min(Self::MAX_IN_FLIGHT);
        self.recheck = Self::MIN_RECHECK;
        self.not_before = None;
        self.denied_bookings = 0;
        self.sharing.admitted();
    }

    /// Records a denial, and when to ask again. With `None` nothing is known to wait for.
    pub(super) fn denied(&mut self, retry_after: Option<RetryAfter>, now: Instant) {
        self.max_in_flight = 1;
        self.is_released = false;
        self.not_before = retry_after.and_then(|RetryAfter { wait, is_estimate, interval }| {
            let recheck = if is_estimate { self.next_recheck() } else { self.jittered(Self::MAX_RECHECK) };
            if is_estimate || wait > recheck {
                self.sharing.interrupted();
                return now.checked_add(wait.min(recheck));
            }
            // The next ask arrives at the limiter when the start is possible, and rather late than early.
            let random = if self.ask_time.is_zero() { 0 } else { self.next_random() };
            let later = self.sharing.denied(wait, interval, random);
            now.checked_add(wait.saturating_sub(self.ask_time / 16 * 15) + later)
        });
    }

    pub(super) fn failed(&mut self) {
        self.max_in_flight = 1;
        self.sharing.interrupted();
    }

    pub(super) fn released(&mut self) {
        self.releases += 1;
        self.is_released = true;
        self.not_before = None;
        self.recheck = Self::MIN_RECHECK;
        self.sharing.interrupted();
    }

    fn next_recheck(&mut self) -> Duration {
        let recheck = self.recheck;
        self.recheck = (recheck * 2).min(Self::MAX_RECHECK);
        recheck
    }

    /// Returns between 80 and 100 % of a time, so that processes do not ask together.
    fn jittered(&mut self, time: Duration) -> Duration {
        time.saturating_sub(time / 5 * u32::from(self.next_random()) / 255)
    }

    fn next_random(&mut self) -> u8 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random.to_be_bytes()[0]
    }
}
