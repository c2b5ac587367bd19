//! Guaranteed shares with borrowing: the exact `retry_after`, and what cannot be built.

use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{DeniedCache, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock, Detail, DynLimit, FixedWindow, Gcra, InFlight, LeakyQueue, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict, WhenFull, per_key,
};

use crate::immediate::{acquire, memory, ready};
use crate::random::Random;

/// A call of a tenant. Tenants from `NO_SHARE` have no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) tenant: u64,
    /// The common limit keeps these units free from the call, if they are more than the sum of the bursts.
    pub(crate) kept: u64,
}

pub(crate) const TENANTS: u64 = 4;
pub(crate) const NO_SHARE: u64 = 1_000;

pub(crate) fn tenant(call: &Call) -> Option<u64> {
    (call.tenant < NO_SHARE).then_some(call.tenant)
}

pub(crate) fn limits<A: Algorithm>(share: A, all: A, guarantee: u64) -> Vec<DynLimit<Call>> {
    vec![
        DynLimit::new(Limit::new("share", share).keyed_by_some(tenant).guarantee(guarantee)),
        DynLimit::new(Limit::new("all", all).keyed_by(|_: &Call| ()).keep_free_by(|call: &Call| call.kept)),
    ]
}

fn micros(wait: Option<Duration>) -> Option<u128> {
    wait.map(|wait| wait.as_micros())
}

/// A clock that advances whenever it is read.
#[derive(Clone, Debug)]
struct ReadClock(ManualClock, Duration);

impl Clock for ReadClock {
    fn now(&self) -> Timestamp {
        self.0.advance(self.1);
        self.0.now()
    }
}

/// A decision and a settlement have one time for all limits: otherwise a charge leaves the share before it leaves the limit
/// of all, and a request within the share is denied.
#[test]
fn time_that_passes_within_a_settlement_breaks_no_share() {
    fn run<A: Algorithm + Clone>(share: A, all: A) -> u64 {
        let clock = ReadClock(ManualClock::new(), Duration::from_millis(37));
        let limiter = Memory::builder(limits(share, all, 2)).max_keys(100).clock(clock.clone()).build();
        let (limiter, mut random, mut within) = (limiter.expect("limits"), Random(3), 0);
        for step in 0..4_000 {
            clock.0.advance(Duration::from_millis(random.below(2_000)));
            let (call, cost) = (Call { tenant: random.below(2), kept: 0 }, 1 + random.below(10));
            let Outcome { decision, held, .. } =
                acquire(&limiter, &call, AcquireOptions::cost(cost).hold().detail(Detail::All));
            let limits = decision.limits();
            let share = limits.iter().find(|limit| limit.name() == "share").expect("a share");
            assert!(decision.is_allowed() || share.remaining() < cost, "step {step}, cost {cost}: {decision:?}");
            within += u64::from(decision.is_allowed());
            if let Some(held) = held {
                ready(held.settle(cost));
            }
        }
        within
    }

    let quota = |limit| Quota::new(limit, Duration::from_secs(10));
    let window = |limit| SlidingWindow::new(quota(limit)).blocks(10);
    let allowed = [
        run(window(10), window(20)),
        run(Gcra::new(quota(10)).burst(10), Gcra::new(quota(20)).burst(20)),
        run(SlidingLog::new(quota(10)), SlidingLog::new(quota(20))),
    ];
    assert!(allowed.iter().all(|allowed| *allowed > 500), "{allowed:?}");
}

/// One limit of the model, by itself: its verdict on a cost.
fn wait_of<K: ?Sized>(single: &impl Limiter<K>, key: &K, options: AcquireOptions) -> Duration {
    let decision = ready(single.peek(key, options.max_delay(Duration::ZERO)));
    if decision.exceeds_limit() { Duration::MAX } else { decision.retry_after().unwrap_or_default() }
}

fn status_wait(status: &LimitStatus) -> Duration {
    match status.verdict() {
        Verdict::Denied { retry_after } => retry_after,
        Verdict::ExceedsLimit => Duration::MAX,
        _ => Duration::ZERO,
    }
}

/// Random arrivals, holds, settlements below and above the held cost, and resets. The model is one limiter for each
/// limit, charged by the rule of the documentation. Each denial is retried a microsecond too early, and in time. A shadow
/// beside the limits keeps fewer units free: it decides as the common limit would, and counts what it would allow.
fn compare_with_model<A: Algorithm + Clone>(share: A, all: A, kept: u64, seed: u64) -> [u64; 4] {
    let clock = ManualClock::new();
    let mut limits = limits(share.clone(), all.clone(), TENANTS);
    limits.push(DynLimit::new(Limit::new("trial", all.clone()).keyed_by(|_: &Call| ()).shadow()));
    let limiter = Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("limits");
    let cache = DeniedCache::with_clock(limiter.clone(), 64, clock.clone());
    let single = |algorithm: A| {
        let limits = vec![DynLimit::<u64>::new(Limit::new("one", algorithm))];
        memory(limits, &clock)
    };
    let (own, common, trial) = (single(share), single(all.clone()), single(all));
    let (mut random, mut counts) = (Random(seed), [0; 4]);
    let mut held: Vec<(Held, Vec<Held>)> = Vec::new();
    for step in 0..2_500 {
        clock.advance(Duration::from_micros(random.below(300_000)));
        if random.below(3) == 0 && !held.is_empty() {
            let (ours, theirs) = held.swap_remove(random.index(held.len()));
            let actual = random.below(5);
            ready(ours.settle(actual));
            for held in theirs {
                ready(held.settle(actual));
            }
            continue;
        }
        // The last tenant has no share.
        let call = Call { tenant: [0, 1, 2, 3, NO_SHARE][random.index(5)], kept: [0, 0, kept + 1][random.index(3)] };
        if random.below(40) == 0 && tenant(&call).is_some() {
            ready(limiter.reset(&call));
            ready(cache.reset(&call));
            ready(own.reset(&call.tenant));
            ready(common.reset(&0));
            ready(trial.reset(&0));
            continue;
        }
        let (cost, is_hold) = (1 + random.below(4), random.below(3) == 0);
        let options_of = |cost| {
            let options = AcquireOptions::cost(cost).keep_guard().detail(Detail::All);
            if is_hold { options.hold() } else { options }
        };
        let options = options_of(cost).max_delay([None, Some(Duration::from_secs(9))][random.index(2)]);
        let context = format!("{seed} {step} {call:?} {options:?}");
        let wait_own = tenant(&call).map_or(Duration::MAX, |tenant| wait_of(&own, &tenant, options_of(cost)));
        let wait_common = wait_of(&common, &0, options_of(cost));
        let wait_kept = wait_of(&common, &0, options_of(cost + kept.max(call.kept)));
        let is_within = wait_own.is_zero();
        let expected = if is_within { wait_common } else { wait_own.max(wait_common).min(wait_kept) };
        let wait_trial = wait_of(&trial, &0, options_of(cost));
        let wait_trial_kept = wait_of(&trial, &0, options_of(cost + kept));
        let expected_trial = if is_within { wait_trial } else { wait_own.max(wait_trial).min(wait_trial_kept) };
        assert_eq!(ready(limiter.peek(&call, options)).is_allowed(), expected.is_zero(), "{context}");
        let Outcome { decision, held: ours, .. } = acquire(&limiter, &call, options);
        assert_eq!(decision.is_allowed(), expected.is_zero(), "{context}");
        assert_eq!((decision.delay(), decision.supports_scheduling()), (Duration::ZERO, false), "{context}");
        assert_eq!(decision.exceeds_limit(), expected == Duration::MAX, "{context}");
        let borrowing = decision.limits().iter().find(|limit| limit.name() == "share").map(LimitStatus::is_borrowing);
        assert_eq!(borrowing, tenant(&call).map(|_| !is_within), "{context}");
        let status = decision.limits().iter().find(|limit| limit.name() == "trial").expect("the shadow");
        assert_eq!(status_wait(status), expected_trial, "{context}");
        let mut theirs = Vec::new();
        if decision.is_allowed() {
            let options = options.max_delay(Duration::ZERO);
            if expected_trial.is_zero() {
                theirs.extend(acquire(&trial, &0, options).held);
            }
            theirs.extend(acquire(&common, &0, options).held);
            if is_within {
                theirs.extend(acquire(&own, &call.tenant, options).held);
            }
            let kept = if is_within { 0 } else { kept.max(call.kept) };
            let left = ready(common.peek(&0, 1.into())).remaining().expect("a limit").saturating_sub(kept);
            let all = decision.limits().iter().find(|limit| limit.name() == "all").expect("the common limit");
            assert_eq!(all.remaining(), left, "{context}");
            // The units of a bucket return one after another, at the rate of its quota.
            let whole = ready(common.peek(&0, 1.into()));
            let (is_bucket, whole) = (whole.supports_scheduling(), &whole.limits()[0]);
            assert_eq!(all.limit(), whole.limit() - kept, "{context}");
            let parts = if is_bucket { [all.limit(), whole.limit()] } else { [1, 1] }.map(u128::from);
            let window = whole.window().map(|window| (window.as_micros() * parts[0]).div_ceil(parts[1]));
            assert_eq!(all.window().map(|window| window.as_micros()), window, "{context}");
            counts[usize::from(is_within)] += 1;
        } else if expected != Duration::MAX {
            assert_eq!(micros(decision.retry_after()), Some(expected.as_micros()), "{context}");
            if random.below(4) == 0 && !decision.is_estimate() {
                assert!(!acquire(&cache, &call, options).decision.is_allowed(), "{context}");
                clock.advance(expected.saturating_sub(Duration::from_micros(1)));
                assert!(!ready(limiter.peek(&call, options)).is_allowed(), "too long: {context}");
                assert!(!ready(cache.peek(&call, options)).is_allowed(), "cached: {context}");
                clock.advance(Duration::from_micros(1));
                assert!(ready(limiter.peek(&call, options)).is_allowed(), "too short: {context}");
                assert!(ready(cache.peek(&call, options)).is_allowed(), "cached for too long: {context}");
                counts[3] += 1;
            }
            counts[2] += 1;
        }
        held.extend(ours.map(|ours| (ours, theirs)));
    }
    counts
}

fn compare_seeds<A: Algorithm + Clone>(share: &A, all: &A, kept: u64, retries: u64) {
    for seed in 1..=4 {
        let counts @ [borrowed, within, denied, retried] = compare_with_model(share.clone(), all.clone(), kept, seed);
        println!("{share:?} {seed}: borrowed, within, denied, retried {counts:?}");
        assert!(borrowed > 10 && within > 50 && denied > 100 && retried >= retries, "{share:?}: {counts:?}");
    }
}

#[test]
fn shares_and_borrowers_decide_as_documented_after_resets_and_surcharges() {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    compare_seeds(&Gcra::new(quota(3, 2_000)).burst(4), &Gcra::new(quota(12, 1_500)).burst(22), 16, 10);
    let [share, all] = [quota(4, 2_000), quota(22, 2_000)];
    compare_seeds(&SlidingWindow::new(share), &SlidingWindow::new(all), 16, 10);
    compare_seeds(&SlidingLog::new(share), &SlidingLog::new(all), 16, 10);
    compare_seeds(&InFlight::new(4), &InFlight::new(20), 16, 0);
}

/// Eight tenants of which the busy one changes every second, for 60 seconds after the first. Returns the served part of
/// the capacity, and the smallest part of its requests that a tenant with little to send was served.
fn serve(limiter: &Memory<Call, Vec<DynLimit<Call>>>, clock: &ManualClock) -> (f64, f64) {
    const RATE: u64 = 800;
    let mut random = Random(7);
    let (mut served, mut asked_by, mut served_by) = (0, [0_u64; 8], [0_u64; 8]);
    // 3.5 times the capacity. Each tenant but the busy one asks for 58 % of its share.
    for half_millisecond in 0..122_000_u64 {
        let (second, busy) = (half_millisecond / 2_000, half_millisecond / 2_000 % 8);
        for tenant in 0..8 {
            let per_second = if tenant == busy { RATE * 35 / 10 - 7 * 58 } else { 58 };
            // The mean cost is 2.
            let cost = [1, 3][random.index(2)];
            if random.below(4_000) >= per_second {
                continue;
            }
            let is_allowed = limiter.check(&Call { tenant, kept: 0 }, cost).is_allowed();
            if second >= 1 {
                served += if is_allowed { cost } else { 0 };
                if tenant != busy {
                    let index = usize::try_from(tenant).expect("an index");
                    asked_by[index] += cost;
                    served_by[index] += if is_allowed { cost } else { 0 };
                }
            }
        }
        clock.advance(Duration::from_micros(500));
    }
    let least = served_by.iter().zip(&asked_by).map(|(served, asked)| part(*served, *asked)).fold(1.0, f64::min);
    (part(served, 60 * RATE), least)
}

fn part(served: u64, asked: u64) -> f64 {
    let [served, asked] = [served, asked].map(|units| f64::from(u32::try_from(units).expect("a test of seconds")));
    served / asked
}

#[test]
fn eight_tenants_with_changing_busy_ones_use_the_capacity() {
    let measure = |limits: Vec<DynLimit<Call>>| {
        let clock = ManualClock::new();
        let limiter = memory(limits, &clock);
        serve(&limiter, &clock)
    };
    let share = Gcra::new(Quota::per_second(100)).burst(20);
    let all = Gcra::new(Quota::per_second(800)).burst(400);
    let whole = || DynLimit::new(Limit::new("all", all).keyed_by(|_: &Call| ()));
    let (borrowing, least) = measure(limits(share, all, 8));
    let (fixed, _) = measure(vec![DynLimit::new(Limit::new("tenant", share).keyed_by_some(tenant)), whole()]);
    let (alone, least_alone) = measure(vec![whole()]);
    println!("served of the capacity: shares {borrowing:.3}, tenant and all {fixed:.3}, all alone {alone:.3}");
    println!("served of what a tenant asks within its share: shares {least:.3}, all alone {least_alone:.3}");
    assert!(borrowing >= 0.95 && fixed < 0.7, "{borrowing} {fixed}");
    assert!(least > 0.95 && least_alone < 0.8, "{least} {least_alone}");
}

#[test]
fn blocked_share_is_denied_until_the_block_ends() {
    let clock = ManualClock::new();
    let gcra = |limit| Gcra::new(Quota::per_second(limit));
    let limiter = memory(limits(gcra(1), gcra(9), 4), &clock);
    let call = Call { tenant: 1, kept: 0 };
    ready(limiter.block("share", &call, Duration::from_secs(7)));
    let decision = limiter.check(&call, 1);
    assert_eq!((decision.retry_after(), decision.is_blocked()), (Some(Duration::from_secs(7)), true));
    assert!(limiter.check(&Call { tenant: 2, kept: 0 }, 1).is_allowed());
    clock.advance(Duration::from_secs(7));
    assert!(limiter.check(&call, 1).is_allowed());
}

/// A table of shares evicts no sub-key in use, whatever the capacity and the policy: the requests borrow.
#[test]
fn sub_key_without_a_slot_borrows() {
    let day = |limit, burst| Gcra::new(Quota::per_day(limit)).burst(burst);
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let limits = (
            Limit::new("share", day(1, 2)).keyed_by(|call: &Call| call.tenant).guarantee(4),
            Limit::new("all", day(1_000_000, 1_000_000)).keyed_by(|_: &Call| ()),
        );
        let limiter = Memory::builder(limits).max_keys(4).when_full(when_full).build().expect("limits");
        let is_within = |tenant| {
            let (call, options) = (Call { tenant, kept: 0 }, AcquireOptions::cost(1).detail(Detail::All));
            let (peek, decision) = (ready(limiter.peek(&call, options)), limiter.check(&call, options));
            assert_eq!(peek.limits()[0].is_borrowing(), decision.limits()[0].is_borrowing(), "{tenant}");
            assert!(decision.is_allowed());
            !decision.limits()[0].is_borrowing()
        };
        let first: Vec<_> = (0..3_000).filter(|tenant| is_within(*tenant)).collect();
        assert!(first.len() >= 4 && first.len() < 2_000, "{when_full:?}: {}", first.len());
        let again: Vec<_> = (0..3_000).filter(|tenant| is_within(*tenant)).collect();
        assert_eq!(first, again, "{when_full:?}: no sub-key was evicted");
        assert!(!(0..3_000).any(is_within), "{when_full:?}: the shares are used");
        assert!(limiter.usage().iter().all(|usage| usage.limit != "share" || usage.evicted == 0));
    }
}

fn error_of(limits: Vec<DynLimit<Call>>) -> String {
    Memory::builder(limits).build().map(drop).expect_err("a misconfigured share").to_string()
}

/// Checks the error of a share for `count` sub-keys beside a common limit.
fn check<A: Algorithm, B: Algorithm>(share: A, all: B, count: u64, expected: &str) {
    let share = DynLimit::new(Limit::new("share", share).keyed_by_some(tenant).guarantee(count));
    let error = error_of(vec![share, DynLimit::new(Limit::new("all", all).keyed_by(|_: &Call| ()))]);
    assert!(error.contains(expected), "{error}");
}

#[test]
fn shares_that_cannot_be_guaranteed_are_errors_when_built() {
    let gcra = |limit, burst| Gcra::new(Quota::per_second(limit)).burst(burst);
    let log = |limit, seconds| SlidingLog::new(Quota::new(limit, Duration::from_secs(seconds)));
    let window = |limit| SlidingWindow::new(Quota::per_second(limit));
    check(gcra(1, 1), gcra(8, 8), 0, "\"share\": there are 0 sub-keys");
    check(gcra(2, 1), gcra(8, 8), 5, "\"all\" beside the guaranteed share \"share\": the rates of all shares add up");
    check(gcra(1, 2), gcra(8, 8), 5, "the bursts of all shares add up");
    check(gcra(1_000_000, 1 << 40), gcra(8, 8), 1 << 60, "the sum of all bursts is above 2^64");
    check(gcra(1, 1), window(8), 4, "the share is a bucket; use a bucket");
    check(log(1, 1), log(8, 2), 4, "use one of the same period");
    check(window(1), window(8).blocks(4), 4, "the same period and number of blocks");
    check(InFlight::new(1), InFlight::new(8).max_duration(Duration::from_secs(1)), 4, "the same `max_duration`");
    check(FixedWindow::new(Quota::per_second(1)), gcra(8, 8), 4, "its algorithm cannot guarantee shares");
    check(window(1).weighted(), window(8), 4, "its algorithm cannot guarantee shares");
    check(gcra(1, 1), LeakyQueue::new(Quota::per_second(9)), 4, "its algorithm cannot guarantee shares");
    check(gcra(1, 1), gcra(200_000, 200_000), 150_000, "raise `max_keys`");
    let all = || DynLimit::new(Limit::new("all", gcra(8, 8)).keyed_by(|_: &Call| ()));
    let share = || Limit::new("share", gcra(1, 1)).keyed_by(|call: &Call| call.tenant).guarantee(4);
    let second = Limit::new("second", gcra(1, 1)).keyed_by(|call: &Call| call.tenant).guarantee(4);
    let tiers = Limit::new("share", per_key(move |_: &Call| gcra(1, 1))).keyed_by(|call: &Call| call.tenant);
    for (limits, expected) in [
        (vec![DynLimit::new(share()), all(), DynLimit::new(second)], "is a second guaranteed share"),
        (vec![DynLimit::new(share())], "no other limit of the limiter counts the same cost"),
        (
            vec![DynLimit::new(share().cost_of("shares-unit")), all()],
            "no other limit of the limiter counts the same cost",
        ),
        (vec![DynLimit::new(share().shadow()), all()], "a shadow guarantees nothing"),
        (vec![DynLimit::new(share().keep_free_by(|_: &Call| 1)), all()], "it keeps units free itself"),
        (vec![DynLimit::new(tiers.guarantee(4)), all()], "its algorithm cannot guarantee shares"),
        (
            vec![DynLimit::new(share()), DynLimit::new(Limit::new("all", gcra(8, 8)))],
            "the limit \"share\" guarantees a share",
        ),
        (
            vec![
                DynLimit::new(share()),
                DynLimit::new(Limit::new("all", per_key(move |_: &Call| gcra(8, 8))).keyed_by(|_: &Call| ())),
            ],
            "its algorithm cannot guarantee shares",
        ),
    ] {
        let error = error_of(limits);
        assert!(error.contains(expected), "{error}");
    }
    // Exactly the capacity, with another bucket's name.
    let bucket = TokenBucket::new(Quota::per_second(4)).burst(4);
    let whole = Limit::new("all", bucket).keyed_by(|_: &Call| ());
    assert!(Memory::<Call, _>::builder((share(), whole)).build().is_ok());
}
