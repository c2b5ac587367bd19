//! What the logs of all processes exceed. All times are in microseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) const SECOND: u64 = 1_000_000;

/// An admission at any time between the two, or a request in flight from the one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Job {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) cost: u64,
}

/// A loss of data, at any time between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Bucket,
    /// At most `burst` in each second.
    Log,
    /// At most `burst` at the same time.
    Flight,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// Units per second.
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// Leases may hold a quarter.
    pub(crate) is_leased: bool,
}

/// The limits of the processes.
pub(crate) const LIMITS: [Limit; 6] = [
    Limit { name: "bucket", form: Form::Bucket, rate: 400, burst: 400, is_leased: true },
    Limit { name: "log", form: Form::Log, rate: 300, burst: 300, is_leased: true },
    // A window begins with its first charge, so a period has at most two.
    Limit { name: "window", form: Form::Log, rate: 600, burst: 600, is_leased: true },
    Limit { name: "direct", form: Form::Bucket, rate: 200, burst: 200, is_leased: false },
    Limit { name: "held", form: Form::Bucket, rate: 300, burst: 300, is_leased: false },
    Limit { name: "flight", form: Form::Flight, rate: 0, burst: 40, is_leased: false },
];

/// Units beyond the bound of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Beyond {
    pub(crate) total: u64,
    /// What the documentation allows to be lost.
    pub(crate) allowed: u64,
    /// The units beyond both.
    pub(crate) worst: u64,
}

/// Judges the jobs of one key, of whose data these losses are.
pub(crate) fn beyond(limit: &Limit, jobs: &[Job], losses: &[Loss], hold_expiry: u64) -> Beyond {
    // A loss forgets at most the usage of one bucket, and the units of leases.
    let share = limit.burst + if limit.is_leased { limit.burst / 4 } else { 0 };
    let lost = |count: usize| count as u64 * share;
    let mut beyond = Beyond::default();
    if limit.form == Form::Bucket {
        let mut millionths = 0;
        for (at, more) in bucket_excess(jobs, limit.rate, limit.burst) {
            millionths += more;
            let before = losses.iter().filter(|loss| loss.begin <= at).count();
            beyond.total = millionths.div_ceil(SECOND);
            beyond.worst = beyond.worst.max(beyond.total.saturating_sub(lost(before)));
        }
        beyond.allowed = lost(losses.len());
        return beyond;
    }
    let (excess, window) = match limit.form {
        Form::Flight => (flight_excess(jobs, limit.burst), hold_expiry),
        Form::Log | Form::Bucket => (log_excess(jobs, limit.burst), SECOND),
    };
    for (at, units) in excess {
        let inside = losses.iter().filter(|loss| loss.begin <= at && at <= loss.end + window).count();
        beyond.total = beyond.total.max(units);
        beyond.worst = beyond.worst.max(units.saturating_sub(lost(inside)));
    }
    beyond.allowed = lost(losses.len().min(1));
    beyond
}

/// A bucket that serves each admission as late as possible, because tokens can be kept.
struct Bucket {
    rate: u64,
    /// In millionths of a unit.
    full: u64,
    level: u64,
    at: u64,
    /// The ends of admissions, and what they still need.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Bucket {
    fn refill(&mut self, until: u64) {
        self.level = self.level.saturating_add((until - self.at).saturating_mul(self.rate));
        self.at = until;
        // Tokens that a full bucket cannot keep serve the admission that ends first.
        while self.level > self.full
            && let Some(Reverse((end, left))) = self.waiting.pop()
        {
            let served = left.min(self.level - self.full);
            self.level -= served;
            if served < left {
                self.waiting.push(Reverse((end, left - served)));
            }
        }
        self.level = self.level.min(self.full);
    }

    /// Returns the time and the need of the first admission if it ends before this time.
    fn ends_before(&self, time: u64) -> Option<(u64, u64)> {
        self.waiting.peek().map(|first| first.0).filter(|&(end, _)| end < time)
    }
}

/// Returns times and millionths of a unit beyond a bucket. What is not served at the end of its time is explained by no
/// choice of the times.
pub(crate) fn bucket_excess(jobs: &[Job], rate: u64, burst: u64) -> Vec<(u64, u64)> {
    let full = burst * SECOND;
    let mut bucket = Bucket { rate, full, level: full, at: 0, waiting: BinaryHeap::new() };
    let mut excess = Vec::new();
    let mut jobs = jobs.to_vec();
    jobs.sort_unstable();
    jobs.push(Job { begin: u64::MAX, end: u64::MAX, cost: 0 });
    for Job { begin, end, cost } in jobs {
        while let Some((first, _)) = bucket.ends_before(begin) {
            bucket.refill(first.max(bucket.at));
            while let Some((last, left)) = bucket.ends_before(bucket.at + 1) {
                bucket.waiting.pop();
                if left > bucket.level {
                    excess.push((last, left - bucket.level));
                }
                bucket.level = bucket.level.saturating_sub(left);
            }
        }
        bucket.refill(begin);
        bucket.waiting.push(Reverse((end, cost * SECOND)));
    }
    excess.sort_unstable();
    excess
}

/// Returns the ends of seconds in which the admissions exceed a limit, and the units beyond it.
fn log_excess(jobs: &[Job], limit: u64) -> Vec<(u64, u64)> {
    let (mut inside, mut units, mut excess) = (BinaryHeap::new(), 0, Vec::new());
    let mut jobs = jobs.to_vec();
    jobs.sort_by_key(|job| job.end);
    for Job { begin, end, cost } in jobs {
        inside.push(Reverse((begin, cost)));
        units += cost;
        while let Some(&Reverse((begin, cost))) = inside.peek()
            && begin + SECOND <= end
        {
            inside.pop();
            units -= cost;
        }
        if units > limit {
            excess.push((end, units - limit));
        }
    }
    excess
}

/// Returns times and numbers of requests beyond the limit, for requests that are certainly in flight.
fn flight_excess(requests: &[Job], limit: u64) -> Vec<(u64, u64)> {
    let certain = requests.iter().filter(|request| request.end > request.begin);
    let mut changes: Vec<_> = certain.flat_map(|request| [(request.begin, true), (request.end, false)]).collect();
    changes.sort_unstable();
    let (mut running, mut excess) = (0, Vec::new());
    for (at, is_begin) in changes {
        running = if is_begin { running + 1 } else { running - 1 };
        if is_begin && running > limit {
            excess.push((at, running - limit));
        }
    }
    excess
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn job(begin: u64, end: u64) -> Job {
        Job { begin, end, cost: 1 }
    }

    fn with(jobs: &[Job]) -> Vec<Job> {
        [&[job(0, 0); 10], jobs].concat()
    }

    #[test]
    fn bucket_excess_is_what_no_choice_of_times_explains() {
        assert_eq!(bucket_excess(&with(&[job(100_000, 100_000)]), 10, 10), []);
        assert_eq!(bucket_excess(&with(&[job(99_999, 99_999)]), 10, 10), [(99_999, 10)]);
        // An admission may have been at the end of its time, and of two the one that ends first is served first.
        assert_eq!(bucket_excess(&with(&[job(0, 100_000), job(0, 200_000)]), 10, 10), []);
        assert_eq!(bucket_excess(&with(&[job(0, 100_000), job(0, 199_999)]), 10, 10), [(199_999, 10)]);
        assert_eq!(bucket_excess(&[Job { cost: 12, ..job(0, 0) }], 10, 10), [(0, 2 * SECOND)]);
        let spread: Vec<_> = (1..=50).map(|index| job(index * 100_000, index * 100_000)).collect();
        assert_eq!(bucket_excess(&with(&spread), 10, 10), []);
        assert_eq!(bucket_excess(&with(&spread), 9, 10).iter().map(|excess| excess.1).sum::<u64>(), 5 * SECOND);
    }

    #[test]
    fn bucket_excess_agrees_with_a_search_of_all_windows() {
        let (mut random, mut found) = (Random::new(1), 0);
        for _ in 0..200 {
            let job = |_| {
                let begin = random.below(1_000_000);
                Job { begin, end: begin + random.below(400_000), cost: random.between(1, 3) }
            };
            let jobs: Vec<_> = (0..30).map(job).collect();
            let inside = |begin, end| -> u64 {
                jobs.iter().filter(|job| begin <= job.begin && job.end <= end).map(|job| job.cost).sum()
            };
            let windows = jobs.iter().flat_map(|first| jobs.iter().map(|last| (first.begin, last.end)));
            let mut windows = windows.filter(|(begin, end)| begin <= end);
            let is_over = windows.any(|(begin, end)| inside(begin, end) * SECOND > 10 * SECOND + 40 * (end - begin));
            assert_eq!(is_over, !bucket_excess(&jobs, 40, 10).is_empty(), "{jobs:?}");
            found += u32::from(is_over);
        }
        assert!((20..180).contains(&found), "{found} of 200 are beyond the bucket");
    }

    #[test]
    fn log_excess_is_within_one_second() {
        assert_eq!(log_excess(&with(&[job(SECOND, SECOND)]), 10), []);
        assert_eq!(log_excess(&with(&[job(0, SECOND)]), 10), []);
        assert_eq!(log_excess(&with(&[job(1, SECOND - 1)]), 10), [(SECOND - 1, 1)]);
    }

    #[test]
    fn flight_excess_is_at_one_time() {
        assert_eq!(flight_excess(&[job(0, 5), job(5, 9)], 1), []);
        assert_eq!(flight_excess(&[job(0, 6), job(5, 9)], 1), [(5, 1)]);
    }

    #[test]
    fn losses_are_allowed_as_documented() {
        let [bucket, log, .., flight] = LIMITS;
        let jobs = |count: usize| vec![job(SECOND, SECOND); count];
        let loss = |begin| Loss { begin, end: begin };
        let judge = |limit, count, losses: &[Loss]| beyond(limit, &jobs(count), losses, 5 * SECOND);
        assert_eq!(judge(&bucket, 401, &[]), Beyond { total: 1, allowed: 0, worst: 1 });
        assert_eq!(judge(&bucket, 900, &[loss(SECOND)]), Beyond { total: 500, allowed: 500, worst: 0 });
        assert_eq!(judge(&bucket, 901, &[loss(SECOND)]).worst, 1);
        assert_eq!(judge(&bucket, 401, &[loss(SECOND + 1)]).worst, 1, "a later loss explains nothing");
        assert_eq!(judge(&log, 676, &[loss(0)]), Beyond { total: 376, allowed: 375, worst: 1 });
        assert_eq!(beyond(&flight, &[job(0, 9); 81], &[loss(0)], SECOND), Beyond { total: 41, allowed: 40, worst: 1 });
    }
}
