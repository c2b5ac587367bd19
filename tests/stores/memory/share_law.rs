//! The theorem of guaranteed shares, on random arrivals and holds: also in full tables and after restarts.

use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Detail, Gcra, InFlight, LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, WhenFull,
};

use crate::immediate::{acquire, ready};
use crate::random::Random;
use crate::shares::{Call, NO_SHARE, TENANTS, limits, tenant};

/// What befalls the limiter of a trace.
#[derive(Clone, Copy)]
struct Trouble {
    steps: u64,
    tenants: u64,
    /// With less than `tenants`, some of them find no slot.
    max_keys: usize,
    when_full: WhenFull,
    /// Whether processes end at random times: the next one restores what the last one has saved, or an older file.
    restarts: bool,
    /// Whether holds have ids instead of guards. Some expire before they are settled.
    ids: bool,
}

const CALM: Trouble =
    Trouble { steps: 3_000, tenants: TENANTS, max_keys: 100, when_full: WhenFull::Evict, restarts: false, ids: false };

/// What a trace has held and not settled.
enum Open {
    Guard(Held),
    Id(Call, String),
}

/// What a trace has seen: borrowed requests, requests within a share, restarts, and requests of tenants without a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    borrowed: u64,
    within: u64,
    restarts: u64,
    without_slot: u64,
}

/// The theorem: without surcharges and resets, the common limit allows each request that its share allows. Its assertion is
/// the invariant: the usage above what borrowers may use is at most the usage of all shares.
fn check_invariant<A>(share: &A, all: &A, max_share: u64, trouble: Trouble, seed: u64) -> Seen
where
    A: Algorithm + Clone,
{
    let Trouble { steps, tenants, max_keys, when_full, restarts, ids } = trouble;
    let clock = ManualClock::new();
    let build = |file: Option<&[u8]>| {
        let builder = Memory::builder(limits(share.clone(), all.clone(), tenants)).max_keys(max_keys);
        let builder = builder.when_full(when_full).clock(clock.clone());
        if let Some(file) = file { builder.restore(file) } else { builder }.build().expect("limits")
    };
    let (mut limiter, mut file) = (build(None), Vec::new());
    limiter.save(&mut file).expect("saved");
    let (mut random, mut held, mut seen, mut highest) = (Random(seed), Vec::<(Open, u64)>::new(), Seen::default(), 0);
    for step in 0..steps {
        // Bursts of requests, and pauses.
        let longest = [20_000, 20_000, 2_000_000][random.index(3)];
        clock.advance(Duration::from_micros(random.below(longest)));
        if restarts && random.below(60) == 0 {
            // An orderly end settles what is held, in the file. A killed process has saved before.
            if random.below(2) == 0 {
                file.clear();
                limiter.save(&mut file).expect("saved");
            }
            limiter = build(Some(&file));
            held.clear();
            seen.restarts += 1;
        } else if random.below(3) == 0 && !held.is_empty() {
            let (held, cost) = held.swap_remove(random.index(held.len()));
            let actual = random.below(cost + 1);
            match held {
                Open::Guard(held) => ready(held.settle(actual)),
                // Twice, as after a lost reply.
                Open::Id(call, id) => (0..2).for_each(|_| {
                    let settled = limiter.settle(&call, id.as_str(), actual).try_ready().expect("ready");
                    assert!(settled.is_ok() || settled.is_err_and(|error| error.is_unknown_id()));
                }),
            }
        } else {
            // One tenant is busy. The last one has no share.
            let others = [random.below(tenants), NO_SHARE + random.below(2)];
            let call =
                Call { tenant: [0, 0, 0, 0, 0, others[0], others[0], others[0], others[1]][random.index(9)], kept: 0 };
            let cost = 1 + random.below(3);
            let options = AcquireOptions::cost(cost).keep_guard().detail(Detail::All);
            let is_hold = random.below(2) == 0;
            let id = (is_hold && ids).then(|| format!("{step}"));
            let options = if is_hold { options.hold() } else { options };
            let options = match &id {
                Some(id) => options.id(id).expires_in(Duration::from_millis([500, 60_000][random.index(2)])),
                None => options,
            };
            let is_unused = ready(limiter.peek(&call, AcquireOptions::cost(0))).remaining() == Some(max_share);
            let Outcome { decision, held: guard, .. } = acquire(&limiter, &call, options);
            let borrows = decision.limits().iter().any(LimitStatus::is_borrowing) || tenant(&call).is_none();
            assert!(borrows || decision.is_allowed(), "{share:?} {seed} {step} {call:?} {cost} {decision:?}");
            let open = guard.map(Open::Guard);
            let open = open.or(id.filter(|_| decision.is_allowed()).map(|id| Open::Id(call, id)));
            held.extend(open.map(|open| (open, cost)));
            seen.without_slot += u64::from(borrows && is_unused && tenant(&call).is_some());
            *if borrows { &mut seen.borrowed } else { &mut seen.within } += u64::from(decision.is_allowed());
        }
        // With many tenants, looking at all of them takes most of the time.
        if step % (1 + tenants / 2) != 0 {
            continue;
        }
        // A cost of 0 is within a share: the numbers include the kept units.
        let free = |tenant, name: &str| {
            let decision = ready(limiter.peek(&Call { tenant, kept: 0 }, AcquireOptions::cost(0).detail(Detail::All)));
            decision.limits().iter().find(|limit| limit.name() == name).expect("the limit").remaining()
        };
        let used: u64 = (0..tenants).map(|tenant| max_share - free(tenant, "share")).sum();
        let above = (tenants * max_share).saturating_sub(free(0, "all"));
        // Usage is rounded up to units.
        assert!(above <= used + 1, "{share:?} {seed} {step}: {above} above the kept units, {used} in shares");
        highest = highest.max(above);
    }
    assert!(highest > 5, "{share:?} {seed}: {highest}");
    seen
}

#[test]
fn common_limit_allows_what_a_share_allows() {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let run = |seen: Seen| assert!(seen.borrowed > 30 && seen.within > 30, "{seen:?}");
    for seed in 1..=2 {
        let [share, all] = [quota(5, 2_000), quota(20, 2_000)];
        run(check_invariant(&Gcra::new(share).burst(5), &Gcra::new(all).burst(27), 5, CALM, seed));
        let [share, all] = [quota(5, 2_000), quota(27, 2_000)];
        run(check_invariant(&SlidingWindow::new(share), &SlidingWindow::new(all), 5, CALM, seed));
        run(check_invariant(&SlidingLog::new(share), &SlidingLog::new(all), 5, CALM, seed));
    }
    check_invariant(&InFlight::new(5), &InFlight::new(27), 5, CALM, 1);
}

/// The same with ids instead of guards, which are settled once, however often a settlement is sent, or expire.
#[test]
fn reservation_id_beside_shares() {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let trouble = Trouble { ids: true, ..CALM };
    for seed in 1..=2 {
        let [share, all] = [quota(5, 2_000), quota(20, 2_000)];
        let seen = check_invariant(&Gcra::new(share).burst(5), &Gcra::new(all).burst(27), 5, trouble, seed);
        assert!(seen.borrowed > 30 && seen.within > 30, "{seen:?}");
        let [share, all] = [quota(5, 2_000), quota(27, 2_000)];
        check_invariant(&SlidingWindow::new(share), &SlidingWindow::new(all), 5, trouble, seed);
        check_invariant(&SlidingLog::new(share), &SlidingLog::new(all), 5, trouble, seed);
        check_invariant(&InFlight::new(5), &InFlight::new(27), 5, trouble, seed);
    }
}

/// The same in full tables, under each policy, and with processes that end or are killed.
#[test]
fn common_limit_allows_what_a_share_allows_in_full_tables_and_after_restarts() {
    // As many as the smallest table has slots, so that some find none.
    const MANY: u64 = 192;
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let mut sum = Seen::default();
    let mut run = |seen: Seen| {
        assert!(seen.borrowed > 10 && seen.within > 30 && seen.restarts > 10, "{seen:?}");
        sum.restarts += seen.restarts;
        sum.without_slot += seen.without_slot;
    };
    let policies = [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny];
    for (seed, when_full) in policies.into_iter().cycle().take(6).enumerate() {
        let seed = 100 + seed as u64;
        let trouble = Trouble { when_full, restarts: true, ..CALM };
        let [share, all] = [quota(5, 2_000), quota(27, 2_000)];
        run(check_invariant(&SlidingWindow::new(share), &SlidingWindow::new(all), 5, trouble, seed));
        run(check_invariant(&SlidingLog::new(share), &SlidingLog::new(all), 5, trouble, seed));
        // The shares do not drain: nearly all tenants need a slot at a time. Hashes are random, so each one finds a slot in some
        // of these traces.
        let full = Trouble { steps: 9_000, tenants: MANY, max_keys: 4, ..trouble };
        let [share, all] = [quota(5, 9_000_000), quota(5 * MANY, 1_000_000)];
        let (share, all) = (Gcra::new(share).burst(5), Gcra::new(all).burst(7 + 5 * MANY));
        run(check_invariant(&share, &all, 5, full, seed));
    }
    println!("{} restarts, {} requests without a slot", sum.restarts, sum.without_slot);
    assert!(sum.without_slot > 0, "{sum:?}");
}
