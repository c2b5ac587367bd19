//! The auditor: replays the decisions of all processes through one exact bucket.

use std::collections::BTreeMap;
use std::time::Duration;

/// One decision: its time in microseconds, its key, and whether it was admitted. Every cost is 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) time: u64,
    pub(crate) key: u64,
    pub(crate) is_admitted: bool,
}

/// A bucket that refills `rate` tokens in each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// The maximum error of the times. For as long, the bucket may refill in advance.
    pub(crate) skew: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Audit {
    pub(crate) arrivals: u64,
    pub(crate) admitted: u64,
    /// The admissions that the bucket does not allow.
    pub(crate) beyond: u64,
    /// By how many tokens the worst admission exceeds the bucket, rounded up.
    pub(crate) worst: u64,
    /// The admissions of one bucket that sees all arrivals.
    pub(crate) ideal: u64,
}

impl Audit {
    #[allow(clippy::cast_precision_loss, reason = "a share for people")]
    pub(crate) fn share(&self) -> f64 {
        self.admitted as f64 / self.ideal.max(1) as f64
    }
}

/// The usage of a bucket, in millionths of a token.
#[derive(Default)]
struct Usage {
    micro_tokens: u64,
    at: u64,
}

const TOKEN: u64 = 1_000_000;

impl Usage {
    fn drain(&mut self, now: u64, bucket: &Bucket) {
        self.micro_tokens = self.micro_tokens.saturating_sub(bucket.rate * now.saturating_sub(self.at));
        self.at = now;
    }
}

pub(crate) fn audit(mut log: Vec<Entry>, bucket: Bucket) -> Audit {
    log.sort();
    let mut audit = Audit::default();
    let mut keys: BTreeMap<u64, (Usage, Usage)> = BTreeMap::new();
    let allowed = bucket.burst * TOKEN + bucket.rate * u64::try_from(bucket.skew.as_micros()).expect("short");
    for entry in log {
        let (actual, ideal) = keys.entry(entry.key).or_default();
        actual.drain(entry.time, &bucket);
        ideal.drain(entry.time, &bucket);
        audit.arrivals += 1;
        if ideal.micro_tokens + TOKEN <= bucket.burst * TOKEN {
            ideal.micro_tokens += TOKEN;
            audit.ideal += 1;
        }
        if entry.is_admitted {
            actual.micro_tokens += TOKEN;
            audit.admitted += 1;
            let over = actual.micro_tokens.saturating_sub(allowed);
            audit.beyond += u64::from(over > 0);
            audit.worst = audit.worst.max(over.div_ceil(TOKEN));
        }
    }
    audit
}

/// A bucket of 10 tokens, one each millisecond.
const BUCKET: Bucket = Bucket { rate: 1_000, burst: 10, skew: Duration::ZERO };

fn admissions(times: impl IntoIterator<Item = u64>) -> Vec<Entry> {
    times.into_iter().map(|time| Entry { time, key: 0, is_admitted: true }).collect()
}

#[test]
fn exact_log_passes() {
    let mut log = admissions([0; 10]);
    log.extend(admissions((1..=20).map(|number| number * 1_000)));
    let denied = (0..20).map(|number| Entry { time: number * 1_000 + 500, key: 0, is_admitted: false });
    log.extend(denied);
    let audit = audit(log, BUCKET);
    assert_eq!((audit.arrivals, audit.admitted, audit.beyond, audit.ideal), (50, 30, 0, 30));
    assert!((audit.share() - 1.0).abs() < 1e-9);
}

#[test]
fn one_admission_too_many_is_found() {
    assert_eq!(audit(admissions([0; 11]), BUCKET).beyond, 1);
    // A microsecond too early.
    let mut log = admissions([0; 10]);
    log.extend(admissions([999]));
    let audit = audit(log, BUCKET);
    assert_eq!((audit.beyond, audit.worst), (1, 1));
}

/// What a lease does that is charged at its grant: its tokens drain, and are spent later.
#[test]
fn spending_after_the_charge_is_found() {
    let mut log = admissions([5_000; 5]);
    log.extend(admissions([5_000; 10]));
    assert_eq!((audit(log.clone(), BUCKET).beyond, audit(log, BUCKET).worst), (5, 5));
}

/// Other keys have buckets of their own, and the order of the log does not matter.
#[test]
fn keys_are_apart_and_the_order_does_not_matter() {
    let mut log = admissions([0; 10]);
    log.extend((0..10).map(|_| Entry { time: 0, key: 1, is_admitted: true }));
    log.extend(admissions([1_000]));
    log.reverse();
    assert_eq!(audit(log, BUCKET).beyond, 0);
}

#[test]
fn skew_is_tolerated_and_no_more() {
    let bucket = Bucket { skew: Duration::from_millis(1), ..BUCKET };
    assert_eq!(audit(admissions([0; 11]), bucket).beyond, 0);
    assert_eq!(audit(admissions([0; 12]), bucket).beyond, 1);
}

#[test]
fn denials_of_free_tokens_reduce_the_share() {
    let log = (0..10).map(|number| Entry { time: 0, key: 0, is_admitted: number % 2 == 0 }).collect();
    assert!((audit(log, BUCKET).share() - 0.5).abs() < 1e-9);
}
