//! What leases cost the server, by the demand of a key.

use std::sync::Arc;
use std::time::Duration;

use super::demand::MIN_DECISIONS;
use crate::clock::ManualClock;
use crate::decision::AcquireOptions;
use crate::encode::EncodeKey as _;
use crate::store::inner::Observers;
use crate::store::redis::RedisLimit;
use crate::store::redis::lease::held_lease::REPORT_WORK;
use crate::store::redis::lease::{Lease, LeaseBook, LeaseClock, LeaseReply};
use crate::store::redis::script::LimitSet;
use crate::{Gcra, Limit, Quota};

const DURATION: Duration = Duration::from_millis(100);

/// The leases of limits with these names and much room.
pub(super) fn book(clock: &ManualClock, duration: Duration, limits: &[&'static str]) -> Arc<LeaseBook> {
    let limit = |name: &&'static str| Limit::new(*name, Gcra::new(Quota::per_second(1_000_000)));
    let infos = limits.iter().map(|name| RedisLimit::<u64>::new(limit(name)).0.info()).collect();
    let limits = Arc::new(LimitSet::new(0, infos, true, Duration::from_secs(10)));
    let clock = LeaseClock::new(Some(Arc::new(clock.clone())));
    let book = LeaseBook::new(Lease::new(duration), limits, clock, "api", &Observers::default());
    Arc::new(book.expect("leases"))
}

/// Acquires so many times in each duration, at equal intervals, on a server with much room. Returns for each duration
/// the decisions in Redis, and the reports.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number")]
fn operations(demands: &[u64]) -> Vec<(u64, u64)> {
    let clock = ManualClock::new();
    let book = book(&clock, DURATION, &["user"]);
    let parts = [book.part(0, AcquireOptions::default(), |hasher| "alice".hash_key(hasher))];
    let (mut operations, mut expiry) = (Vec::new(), 1);
    for demand in demands {
        let (mut direct, mut reports) = (0, 0);
        // The task looks at the leases sixteen times in each duration.
        for tick in 0..16 {
            for report in book.take_due(true) {
                reports += 1;
                expiry += 1;
                let held = report.encode()[5] as u64;
                report.finish(LeaseReply::Applied { held, expiry }, 0, None);
            }
            for _ in tick * demand / 16..(tick + 1) * demand / 16 {
                if book.decide::<1>(&parts, AcquireOptions::default()).is_none() {
                    direct += 1;
                    book.count_demand(&parts, |_| Some(([].into(), book.quota(0, None)?)));
                }
            }
            clock.advance(DURATION / 16);
        }
        operations.push((direct, reports));
    }
    operations
}

/// Returns the server's work, in decisions.
fn work(operations: &[(u64, u64)]) -> u64 {
    operations.iter().map(|(direct, reports)| direct + reports * REPORT_WORK).sum()
}

#[test]
fn leases_cost_the_server_no_more_than_they_save() {
    for demand in (1..=40).chain([64, 128, 256]) {
        let operations = operations(&vec![demand; 100]);
        let (direct, reports) = operations.iter().fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
        println!("{demand}: {direct} decisions in Redis and {reports} reports for {} decisions", demand * 100);
        if demand < MIN_DECISIONS {
            assert_eq!((direct, reports), (demand * 100, 0));
        } else {
            assert!(work(&operations) <= demand * 85, "{demand}: {direct} {reports}");
        }
    }
}

/// A demand between ten decisions, the work of two reports, and the least for a new lease keeps a lease. A smaller one
/// ends it.
#[test]
fn lease_ends_if_its_reports_save_too_little() {
    for (demand, keeps) in [(14, true), (11, true), (8, false), (4, false), (1, false)] {
        let all = operations(&[&[32; 20][..], &[demand; 200]].concat());
        let later = &all[120..];
        println!("{demand} after 32: work {} of {}", work(later), demand * 100);
        if keeps {
            assert!(later.iter().all(|(direct, _)| *direct == 0), "{demand}: {later:?}");
        } else {
            assert_eq!(work(later), demand * 100, "no leases");
        }
    }
}
