use std::time::Duration;

use super::TestKey;
use super::traces::MakeLimit;
use crate::algorithm::{Algorithm, Gcra, SlidingLog, SlidingWindow};
use crate::limit::Limit;
use crate::quota::Quota;
use crate::random::Random;
use crate::store::{DynLimit, StoreLimit};

/// The sub-keys that have a share. Requests of a further one borrow.
const SHARES: u64 = 3;

/// Returns a guaranteed share, and then one or two limits beside it.
pub(super) fn limits_with_share(random: &mut Random) -> Vec<MakeLimit> {
    match random.below(3) {
        0 => limits(random, |quota| Gcra::new(quota).burst(quota.limit())),
        1 => limits(random, SlidingLog::new),
        _ => limits(random, |quota| SlidingWindow::new(quota).blocks(4)),
    }
}

fn limits<A: Algorithm + Copy>(random: &mut Random, make: fn(Quota) -> A) -> Vec<MakeLimit> {
    let (units, period) = (1 + random.below(3), Duration::from_secs(1 + random.below(4)));
    let share = make(Quota::new(units, period));
    let mut limits: Vec<MakeLimit> = vec![Box::new(move || {
        let limit = || {
            let sub_key = |key: &TestKey| Some(2 * key.user + key.team).filter(|id| *id < SHARES);
            Limit::new("share", share).keyed_by_some(sub_key).guarantee(SHARES)
        };
        let text = format!("share by user and team but the last, {share:?}");
        (DynLimit::new(limit()), StoreLimit::new(limit()), text)
    })];
    for index in 0..=random.below(2) {
        let all = make(Quota::new(SHARES * units + random.below(6), period));
        let (is_shadow, has_mark, kept) = (index > 0 && random.below(3) == 0, random.below(2) == 0, random.below(4));
        limits.push(Box::new(move || {
            let limit = || {
                let limit = Limit::new(format!("limit {index}"), all).keyed_by(move |key: &TestKey| key.team * index);
                let limit = limit.keep_free_by(move |key: &TestKey| if key.user == 0 { kept } else { 0 });
                let limit = if has_mark { limit.warn_at(0.6) } else { limit };
                if is_shadow { limit.shadow() } else { limit }
            };
            let part = ["all keys", "team"][usize::from(index > 0)];
            let shadow = if is_shadow { ", shadow" } else { "" };
            let mark = if has_mark { ", mark 0.6" } else { "" };
            let text = format!("limit {index} by {part}, {all:?}, keeps {kept} free from user 0{shadow}{mark}");
            (DynLimit::new(limit()), StoreLimit::new(limit()), text)
        }));
    }
    limits
}
