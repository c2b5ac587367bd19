//! Tables that are full of keys with held costs: what is denied, what is not counted, and what errors say.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::Extracted;
use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DecisionSource, Detail, DynLimit, Gcra, InFlight, Limit, Limiter, ManualClock, Memory,
    Quota, RateLimitLayer, TokenBucket, WhenFull,
};

use crate::immediate::{acquire, peek};
use crate::random::Random;

const POLICIES: [WhenFull; 3] = [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny];

/// The same places in each run.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

fn memory(limits: Vec<DynLimit<u64>>, max_keys: usize, when_full: WhenFull, clock: &ManualClock) -> Memory<u64> {
    let builder = Memory::builder(limits).max_keys(max_keys).when_full(when_full);
    builder.hasher(FixedHasher::default()).clock(clock.clone()).build().expect("limits")
}

/// A shadow of requests in flight, of held tokens, or of both, alone or beside an enforced limit on all keys together.
fn shadows() -> [Vec<DynLimit<u64>>; 4] {
    let streams = || DynLimit::new(Limit::new("streams", InFlight::new(2)).shadow());
    let tokens = || DynLimit::new(Limit::new("tokens", TokenBucket::new(Quota::per_hour(10))).shadow());
    let all = || DynLimit::new(Limit::new("all", Gcra::new(Quota::per_second(100_000))).keyed_by(|_: &u64| ()));
    [vec![streams()], vec![tokens()], vec![all(), streams()], vec![streams(), all(), tokens()]]
}

/// The law: whatever a shadow's table holds, the shadow denies nothing, and counts exactly the requests for which it has
/// a slot.
#[test]
fn shadow_never_denies_when_full() {
    let (mut counted, mut uncounted, mut evicting) = (0_u64, 0_u64, 0);
    for when_full in POLICIES {
        for limits in shadows() {
            let clock = ManualClock::new();
            let limiter = memory(limits, 10, when_full, &clock);
            let mut guards = Vec::new();
            for key in 0..500_u64 {
                assert!(
                    peek(&limiter, &key, AcquireOptions::default().detail(Detail::All)).is_allowed(),
                    "{when_full:?}, key {key}"
                );
                let options = AcquireOptions::default().hold().detail(Detail::All);
                let Outcome { decision, held, .. } = acquire(&limiter, &key, options);
                assert!(decision.is_allowed(), "{when_full:?}, key {key}: {decision:?}");
                assert_eq!(decision.source(), DecisionSource::Store);
                assert!(decision.limits().iter().all(|status| status.limit() > 0), "{decision:?}");
                for status in decision.limits().iter().filter(|status| status.is_shadow()) {
                    *(if status.is_uncounted() { &mut uncounted } else { &mut counted }) += 1;
                }
                evicting += usize::from(limiter.check(&key, 1).is_allowed());
                guards.push(held);
            }
            let held: u64 = limiter.usage().iter().filter(|usage| usage.limit != "all").map(|usage| usage.held).sum();
            assert!((1..=400).contains(&held), "the shadows' tables are full: {held}");
            // Settled beyond what the shadow counted: never an error.
            for (index, held) in guards.into_iter().flatten().enumerate() {
                let settled = if index % 2 == 0 { held.settle(3) } else { held.release() };
                settled.try_ready().expect("ready").expect("settled");
            }
            assert_eq!(limiter.usage().iter().map(|usage| usage.held).sum::<u64>(), 0);
        }
    }
    assert_eq!(evicting, 3 * 4 * 500);
    assert!(counted > 100 && uncounted > 4_000, "{counted} counted, {uncounted} not");
}

/// Each request that a shadow does not count is one event.
#[tokio::test]
async fn shadow_that_counts_nothing_emits_an_event() {
    let clock = ManualClock::new();
    let streams = vec![DynLimit::new(Limit::new("streams", InFlight::new(2)).shadow())];
    let limiter = BoxLimiter::new(memory(streams, 10, WhenFull::Evict, &clock));
    let events = Arc::new(Mutex::new((0_u64, 0_u64)));
    let log = Arc::clone(&events);
    let layer = RateLimitLayer::new(|&key: &u64| Extracted::Key(key), limiter)
        .responder(RejectWithError)
        .release_on_response()
        .observe(move |event: &Event<'_>| {
            let (decided, uncounted) = &mut *log.lock().unwrap();
            match event {
                Event::Decided { decision, .. } => *decided += u64::from(decision.is_allowed()),
                Event::ShadowUncounted { limit, .. } => *uncounted += u64::from(*limit == "streams"),
                _ => {}
            }
        });
    let service = layer.layer(service_fn(|_: u64| std::future::pending::<Result<(), BoxError>>()));
    let mut streams: Vec<_> = (0..400_u64).map(|key| Box::pin(service.clone().oneshot(key))).collect();
    assert!(streams.iter_mut().all(|stream| stream.now_or_never().is_none()));
    let (decided, uncounted) = *events.lock().unwrap();
    assert_eq!(decided, 400);
    assert!((150..250).contains(&uncounted), "{uncounted}");
}

/// "If all other keys are idle, that does not happen below `max_keys` keys with held costs."
/// The law: a denied request evicts no key, whichever table is full.
#[test]
fn denied_request_evicts_no_key() {
    for when_full in POLICIES {
        for is_reversed in [false, true] {
            let user = Limit::new("user", Gcra::new(Quota::per_hour(9))).keyed_by(|key: &u64| key / 1_000);
            let address = Limit::new("address", InFlight::new(1)).keyed_by(|key: &u64| key % 1_000);
            let mut limits = vec![DynLimit::new(user), DynLimit::new(address)];
            if is_reversed {
                limits.reverse();
            }
            let (clock, mut random) = (ManualClock::new(), Random(7));
            let limiter = memory(limits, 12, when_full, &clock);
            let (mut guards, mut denied, mut evicted) = (Vec::new(), 0, 0);
            let now_evicted = || limiter.usage().iter().map(|limit| limit.evicted).sum::<u64>();
            for step in 0..3_000 {
                clock.advance(std::time::Duration::from_millis(random.below(1_000)));
                if random.below(4) == 0 && !guards.is_empty() {
                    drop(guards.swap_remove(random.index(guards.len())));
                }
                let key = random.below(500) * 1_000 + random.below(500);
                let Outcome { decision, held, .. } = acquire(&limiter, &key, AcquireOptions::default().keep_guard());
                guards.extend(held);
                if !decision.is_allowed() {
                    denied += u64::from(decision.most_restrictive().is_none());
                    assert_eq!(now_evicted(), evicted, "{when_full:?}, step {step}");
                }
                evicted = now_evicted();
            }
            assert!(denied > 50, "{when_full:?}: {denied} denials of a full table");
            assert_eq!(evicted > 50, when_full != WhenFull::Deny, "{when_full:?}: {evicted} evictions");
        }
    }
}

#[test]
fn held_keys_below_the_capacity_deny_no_new_key() {
    for when_full in POLICIES {
        let clock = ManualClock::new();
        let streams = vec![DynLimit::new(Limit::new("streams", InFlight::new(1)))];
        let limiter = memory(streams, 10_000, when_full, &clock);
        let mut guards = Vec::new();
        for key in 0..30_000 {
            let held = acquire(&limiter, &key, AcquireOptions::default().keep_guard()).held;
            assert!(held.is_some() || guards.len() >= 10_000, "{when_full:?}: {} keys", guards.len());
            guards.extend(held);
        }
        assert!(guards.len() < 20_000, "{when_full:?}: the table is full");
        guards.clear();
        assert!(acquire(&limiter, &30_000, AcquireOptions::default().keep_guard()).held.is_some(), "{when_full:?}");
    }
}

/// "If all other slots are in use": a new key is denied as often as `WhenFull` says.
#[test]
fn held_keys_in_a_table_of_live_keys_deny_new_keys_as_often_as_documented() {
    const NEW_KEYS: u64 = 20_000;
    for when_full in [WhenFull::Evict, WhenFull::CarryOver] {
        for (tenths, at_most) in [(1, NEW_KEYS / 10_000), (2, NEW_KEYS / 1000), (3, NEW_KEYS / 100), (5, NEW_KEYS / 19)]
        {
            let clock = ManualClock::new();
            let tokens = vec![DynLimit::new(Limit::new("tokens", TokenBucket::new(Quota::per_hour(10))))];
            let limiter = memory(tokens, 5_000, when_full, &clock);
            // Every slot is in use, and a share of the keys has held costs.
            for key in 0..20_000_u64 {
                let _ = limiter.check(&key, 1);
            }
            let slots = limiter.usage()[0].live_keys;
            let (mut guards, mut key) = (Vec::new(), 100_000);
            while guards.len() < slots * tenths / 10 {
                guards.extend(acquire(&limiter, &key, AcquireOptions::default().hold()).held);
                key += 1;
            }
            let mut denied = 0;
            for key in 0..NEW_KEYS {
                let decision = limiter.check(&(1_000_000 + key), 1);
                if decision.source() == DecisionSource::NoLimit {
                    assert!(!decision.is_allowed() && decision.is_estimate());
                    denied += 1;
                }
            }
            assert!(denied <= at_most, "{when_full:?}, {tenths} tenths: {denied}");
            assert!(tenths < 3 || denied > 0, "{when_full:?}, {tenths} tenths");
        }
    }
}

/// The error of an operation on a full table names the true cause.
#[test]
fn set_usage_names_the_cause_of_a_full_table() {
    for when_full in POLICIES {
        let clock = ManualClock::new();
        let limits = vec![DynLimit::new(Limit::new("tokens", TokenBucket::new(Quota::per_hour(10))))];
        let limiter = memory(limits, 1, when_full, &clock);
        let mut guards = Vec::new();
        let mut denied = None;
        for key in 0..500_u64 {
            let outcome = acquire(&limiter, &key, AcquireOptions::default().hold());
            denied = denied.or((!outcome.decision.is_allowed()).then_some(key));
            guards.extend(outcome.held);
        }
        let denied = denied.expect("the table is full");
        let set = limiter.set_usage("tokens", &denied, 1).try_ready().expect("ready").expect_err("no slot");
        let text = set.to_string();
        let is_by_policy = when_full == WhenFull::Deny;
        assert!(set.is_unavailable() && text.contains("max_keys"), "{text}");
        assert_eq!(text.contains("Deny"), is_by_policy, "{text}");
        assert_eq!(text.contains("held costs"), !is_by_policy, "{text}");
    }
}
