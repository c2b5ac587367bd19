//! Repeated denials lead to longer and longer blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use http::StatusCode;
use tower_ratelimit::limiter::{AdminOperation, Chained, DeniedCache, Escalating, Escalation, FailOpen, Fallback};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{Problem, Rejection};
use tower_ratelimit::{
    AcquireOptions, BlockReason, BoxLimiter, Clock as _, Costs, Decision, DynLimit, FixedWindow, Gcra, Limit, Limiter,
    ManualClock, Memory, Quota, SlidingLog, Timestamp,
};

use crate::immediate::{self, boxed, boxed_limits, memory, ready};
use crate::random::Random;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> Decision {
    immediate::acquire(limiter, key, AcquireOptions::default()).decision
}

/// What the documentation says of one key: a limit with a window, and its escalation.
struct Model {
    limit: u64,
    window: Duration,
    denials: u64,
    within: Duration,
    block_for: Vec<Duration>,
    forget_after: Duration,
    keys: HashMap<u64, Key>,
}

#[derive(Clone, Copy, Default)]
struct Key {
    /// The end of the limit's window, and what is used of it.
    used: Option<(Timestamp, u64)>,
    blocked: Option<(Timestamp, BlockReason)>,
    /// The end of the window of denials, and their number.
    denied: Option<(Timestamp, u64)>,
    /// The start of the last block that escalation has set, and the number of blocks.
    escalated: Option<(Timestamp, usize)>,
    /// The block was lifted, which ends the pause after it.
    is_lifted: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Allowed,
    Denied(Duration, Option<BlockReason>),
}

impl Model {
    fn request(&mut self, key: u64, now: Timestamp) -> Expected {
        let key = self.keys.entry(key).or_default();
        let open = key.used.filter(|(end, _)| now < *end);
        let wait = open.filter(|(_, used)| *used == self.limit).map(|(end, _)| end.saturating_since(now));
        if let Some((until, reason)) = key.blocked.filter(|(until, _)| now < *until) {
            let wait = wait.unwrap_or_default().max(until.saturating_since(now));
            return Expected::Denied(wait, Some(reason));
        }
        let Some(wait) = wait else {
            let (end, used) = open.unwrap_or((now.saturating_add(self.window), 0));
            key.used = Some((end, used + 1));
            return Expected::Allowed;
        };
        let (end, count) = key.denied.filter(|(end, _)| now < *end).unwrap_or((now.saturating_add(self.within), 0));
        if count < self.denials {
            key.denied = Some((end, count + 1));
            return Expected::Denied(wait, None);
        }
        let last = key.escalated.filter(|(start, _)| now < start.saturating_add(self.forget_after));
        // Only if another block has replaced the block: one block while the shortest one would last.
        if !key.is_lifted && last.is_some_and(|(start, _)| now < start.saturating_add(self.block_for[0])) {
            return Expected::Denied(wait, None);
        }
        let blocks = last.map_or(1, |(_, blocks)| blocks + 1);
        let duration = self.block_for[blocks.min(self.block_for.len()) - 1];
        (key.denied, key.escalated, key.is_lifted) = (None, Some((now, blocks)), false);
        key.blocked = Some((now.saturating_add(duration), BlockReason::Escalation));
        Expected::Denied(wait.max(duration), Some(BlockReason::Escalation))
    }
}

fn seen(decision: &Decision) -> Expected {
    match decision.retry_after() {
        Some(wait) => Expected::Denied(wait, decision.block_reason()),
        None => Expected::Allowed,
    }
}

/// Also operators' blocks, lifted blocks and resets, and with the default durations: 1 minute, 10 minutes and 1 hour,
/// forgotten after a day.
#[test]
fn escalating_decides_as_the_model() {
    let (mut blocks, mut longest) = (0, 0);
    for seed in 0..20 {
        let mut random = Random(seed);
        let clock = ManualClock::new();
        let mut span = |seconds: u64| Duration::from_millis(1_000 + random.below(seconds * 1_000));
        let (window, within) = (span(20), span(60));
        let mut block_for = vec![span(5), span(20) + 5 * SECOND, span(100) + 25 * SECOND];
        let mut forget_after = block_for[2] + span(400);
        let (limit, denials) = (1 + random.below(3), random.below(6));
        let mut escalation = Escalation::new("api", Quota::new(denials, within));
        let has_default_durations = seed % 4 == 0;
        if has_default_durations {
            (block_for, forget_after) = (vec![MINUTE, 10 * MINUTE, 60 * MINUTE], 24 * 60 * MINUTE);
        } else {
            escalation = escalation.forget_after(Duration::from_secs(1_000_000)).block_for(block_for.clone());
            escalation = escalation.forget_after(forget_after);
        }
        let limits = boxed(Limit::new("api", FixedWindow::new(Quota::new(limit, window))), &clock);
        let limiter = Escalating::new(limits, boxed_limits(escalation.limits(), &clock), escalation);
        let mut model = Model { limit, window, denials, within, block_for, forget_after, keys: HashMap::new() };
        for step in 0..800 {
            clock.advance(Duration::from_millis(match random.below(40) {
                0 if !has_default_durations => random.below(600_000),
                0..4 if has_default_durations => {
                    [700_000, 4_000_000, 100_000_000][random.index(3)] / 9 * random.below(10)
                }
                1..10 => random.below(5_000),
                _ => random.below(100),
            }));
            let (key, now) = (random.below(2), clock.now());
            let place = format!("seed {seed}, step {step}");
            match random.below(60) {
                0 => {
                    let duration = Duration::from_millis(random.below(30_000));
                    ready(limiter.block("api", &key, duration));
                    model.keys.entry(key).or_default().blocked =
                        Some((now.saturating_add(duration), BlockReason::Administrator));
                }
                1 => {
                    ready(limiter.block("api", &key, Duration::ZERO));
                    let known = model.keys.entry(key).or_default();
                    (known.blocked, known.is_lifted) = (None, true);
                }
                2 => {
                    ready(limiter.reset(&key));
                    let known = model.keys.entry(key).or_default();
                    *known = Key { blocked: known.blocked, ..Key::default() };
                }
                3 => {
                    // A peek counts nothing.
                    let _ = ready(limiter.peek(&key, AcquireOptions::default()));
                }
                _ => {
                    let before = model.keys.get(&key).and_then(|key| key.escalated);
                    let expected = model.request(key, now);
                    assert_eq!(seen(&acquire(&limiter, &key)), expected, "{place}");
                    let after = model.keys[&key].escalated;
                    if after != before {
                        blocks += 1;
                        longest += usize::from(after.is_some_and(|(_, blocks)| blocks >= 3));
                    }
                }
            }
        }
    }
    assert!(blocks > 300 && longest > 30, "{blocks} blocks, of which {longest} last longest");
}

/// Beside a client that floods another key, and with the shortest patience that the escalation can have.
#[test]
fn escalation_serves_a_client_that_waits_for_retry_after() {
    let (mut waits, mut floods) = (0, 0);
    for seed in 0..20 {
        let mut random = Random(seed);
        let clock = ManualClock::new();
        let quota = Quota::new(1 + random.below(4), Duration::from_millis(1 + random.below(5_000)));
        let escalation = Escalation::new("api", Quota::new(1, 30 * MINUTE));
        let limits = (Limit::new("api", SlidingLog::new(quota)), Limit::new("bucket", Gcra::new(quota)));
        let limiter =
            Escalating::new(boxed_limits(limits, &clock), boxed_limits(escalation.limits(), &clock), escalation);
        for _ in 0..500 {
            let decision = acquire(&limiter, &"polite");
            if let Some(wait) = decision.retry_after() {
                clock.advance(wait);
                assert!(acquire(&limiter, &"polite").is_allowed(), "seed {seed}");
                waits += 1;
            }
            for _ in 0..6 {
                floods += usize::from(acquire(&limiter, &"flood").block_reason() == Some(BlockReason::Escalation));
            }
            clock.advance(Duration::from_millis(random.below(300)));
        }
    }
    assert!(waits > 400 && floods > 400, "{waits} waits, {floods} blocked requests of another client");
}

#[test]
fn concurrent_denials_escalate_once_per_step() {
    const THREADS: usize = 8;

    for round in 0..12 {
        let clock = ManualClock::new();
        let escalation = Escalation::new("api", Quota::per_minute(3));
        let limits = boxed(Limit::new("api", FixedWindow::new(Quota::per_hour(1))), &clock);
        let escalated = Arc::new(AtomicUsize::new(0));
        let limiter = Escalating::new(limits, boxed_limits(escalation.limits(), &clock), escalation).observe({
            let escalated = Arc::clone(&escalated);
            move |event: &Event<'_>| {
                if let Event::Escalated { limit, step, .. } = event {
                    assert_eq!(*limit, "api");
                    assert_eq!(*step, escalated.fetch_add(1, Ordering::SeqCst) + 1);
                }
            }
        });
        for (step, minutes) in [(1, 1), (2, 10), (3, 60)] {
            let barrier = Barrier::new(THREADS);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        barrier.wait();
                        for _ in 0..20 {
                            let _ = acquire(&limiter, "mallory");
                        }
                    });
                }
            });
            assert_eq!(escalated.load(Ordering::SeqCst), step, "round {round}");
            let decision = acquire(&limiter, "mallory");
            assert_eq!(decision.block_reason(), Some(BlockReason::Escalation), "round {round}");
            clock.advance(minutes * MINUTE);
        }
    }
}

/// Who may call: (account, address), and whether a limit applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    account: &'static str,
    address: u8,
    is_limited: bool,
}

const fn call(account: &'static str, address: u8) -> Call {
    Call { account, address, is_limited: true }
}

/// The law: an escalation is an error until its limit can deny; and if it is none, denials of the limit lead to a block.
#[test]
fn escalation_of_a_limit_that_never_denies_is_an_error() {
    let (mut errors, mut blocks) = (0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let bucket = |burst| Gcra::new(Quota::per_hour(burst)).burst(burst);
        // The limits in their order, with whether each denies.
        let (mut limits, mut named) = (Vec::new(), Vec::new());
        let plain = |name: &'static str, shadow: bool| {
            let limit = Limit::new(name, bucket(2)).keyed_by(|key: &u64| *key);
            DynLimit::new(if shadow { limit.shadow() } else { limit })
        };
        for name in ["a", "b"].into_iter().take(1 + random.index(2)) {
            let is_shadow = random.below(4) == 0;
            limits.push(plain(name, is_shadow));
            named.push((name, !is_shadow));
        }
        let has_shares = random.below(2) == 0;
        if has_shares {
            // Only the whole can deny.
            let share = Limit::new("share", bucket(1)).keyed_by(|key: &u64| *key).guarantee(1).cost_of("unit");
            limits.push(DynLimit::new(share));
            limits.push(DynLimit::new(Limit::new("whole", bucket(2)).keyed_by(|_: &u64| ()).cost_of("unit")));
            named.extend([("share", false), ("whole", true)]);
        }
        let memory = Memory::new(limits);
        let mut limiter = BoxLimiter::new(memory.clone());
        if random.below(2) == 0 {
            limiter = BoxLimiter::new(Chained::new(limiter, Memory::new(vec![plain("c", false)])));
            named.push(("c", true));
        }
        limiter = match random.below(4) {
            0 => limiter,
            1 => BoxLimiter::new(FailOpen::new(limiter)),
            2 => BoxLimiter::new(DeniedCache::new(limiter)),
            _ => {
                named.push(("d", true));
                BoxLimiter::new(Fallback::new(limiter, Memory::new(vec![plain("d", false)])))
            }
        };
        let denying: Vec<_> = named.iter().filter(|limit| limit.1).map(|limit| limit.0).collect();
        let name = random.choose(&["a", "b", "c", "share", "whole", "d", "apis"]);
        let escalation = Escalation::new(name, Quota::per_hour(1));
        let counts = Memory::new(escalation.limits());
        let limiter = Escalating::new(limiter, counts, escalation);
        let cost =
            if has_shares { AcquireOptions::from(Costs::from(1).add("unit", 1)) } else { AcquireOptions::cost(1) };
        let decide = || limiter.acquire(&1, cost).try_ready().unwrap_or_else(|_| panic!("memory decides immediately"));
        if let Err(error) = decide() {
            errors += 1;
            assert!(!denying.contains(&name) && error.is_config(), "{error}");
            let is_named = named.iter().any(|limit| limit.0 == name);
            let never = "a shadow or a guaranteed share denies no request";
            let cause = if is_named { never } else { "no limit of this name" };
            let text = error.to_string();
            assert!(text.starts_with(&format!("escalation of limit {name:?}: ")) && text.contains(cause), "{text}");
            assert!(text.ends_with(&format!("name one of {denying:?}")), "{text}");
            assert_eq!(decide().expect_err("each decision is an error").to_string(), text);
            if !has_shares {
                memory.replace(vec![plain(name, false)]).expect("limits");
                assert!(decide().is_ok(), "{seed}: the limit exists now");
            }
            continue;
        }
        assert!(denying.contains(&name), "{seed}: {name} of {named:?}");
        let blocked = (0..9).any(|_| decide().expect("a decision").decision.is_blocked());
        blocks += u64::from(blocked);
        // Another limit may be the most restrictive one, and the primary limiter of a fallback decides.
        assert!(blocked || denying.len() > 1 || name == "d", "{seed}: {name} of {named:?}");
    }
    assert!(errors > 100 && blocks > 15, "{errors}, {blocks}");
}

#[test]
fn exempt_requests_and_shadow_denials_do_not_escalate() {
    let escalation = Escalation::new("api", Quota::per_minute(1));
    let one = || Limit::new("api", FixedWindow::new(Quota::per_hour(1)));
    let shadow = (
        Limit::new("api", FixedWindow::new(Quota::per_hour(90))),
        Limit::new("shadow", FixedWindow::new(Quota::per_hour(1))).shadow(),
    );
    let shadow = Escalating::new(Memory::new(shadow), Memory::new(escalation.limits()), escalation.clone());
    let exempt = one().keyed_by(|call: &Call| call.account).only_if(|call: &Call| call.is_limited);
    let exempt = Escalating::new(Memory::new(exempt), Memory::new(escalation.limits()), escalation.clone());
    // The other limit denies, and the escalation is about "api".
    let other = (one().keyed_by(|_: &str| 0), Limit::new("other", FixedWindow::new(Quota::per_day(1))));
    let other = Escalating::new(Memory::new(other), Memory::new(escalation.limits()), escalation);
    for _ in 0..20 {
        assert!(acquire(&shadow, "alice").is_allowed());
        assert!(acquire(&exempt, &Call { is_limited: false, ..call("alice", 1) }).is_exempt());
        assert_eq!(acquire(&other, "alice").block_reason(), None);
    }
    assert!(acquire(&exempt, &call("alice", 1)).is_allowed());
}

/// A cost above the limit is the client's constant mistake, not a repeated one; an allowed hold is charged as ever.
#[test]
fn escalating_passes_holds_on_and_does_not_count_excessive_costs() {
    let escalation = Escalation::new("api", Quota::per_minute(1));
    let limiter = Memory::new(Limit::new("api", FixedWindow::new(Quota::per_hour(2))));
    let limiter = Escalating::new(limiter, Memory::new(escalation.limits()), escalation);
    for _ in 0..20 {
        assert!(immediate::acquire(&limiter, "alice", AcquireOptions::cost(3)).decision.exceeds_limit());
    }
    let held = immediate::acquire(&limiter, "alice", AcquireOptions::cost(2).hold()).held.expect("allowed");
    assert_eq!(acquire(&limiter, "alice").block_reason(), None);
    ready(held.release());
    assert!(acquire(&limiter, "alice").is_allowed());
}

/// With limits by account and by address, five wrong guesses of anybody lock the owner out, for a quarter of an hour. An
/// escalation by account would let anybody lock the owner out for an hour. By account and address it hits the attacker.
#[test]
fn escalation_of_logins_by_account_and_address_does_not_lock_the_owner_out() {
    let quarter = 15 * MINUTE;
    let account = |call: &Call| call.account;
    let pair = |call: &Call| (call.account, call.address);
    let of_account = || Limit::new("account", FixedWindow::new(Quota::new(5, quarter))).keyed_by(account);
    let of_pair = || Limit::new("pair", FixedWindow::new(Quota::new(5, quarter))).keyed_by(pair);
    let after_attack = |limiter: &dyn Fn(&Call) -> Decision, clock: &ManualClock| {
        // The attacker guesses for three hours, and the owner then logs in.
        for _ in 0..3 * 60 * 6 {
            let _ = limiter(&call("owner", 66));
            clock.advance(10 * SECOND);
        }
        limiter(&call("owner", 1))
    };

    let clock = ManualClock::new();
    let escalation = Escalation::new("account", Quota::new(10, quarter));
    let counts = boxed_limits(escalation.limits_by(account), &clock);
    let limiter = Escalating::new(boxed(of_account(), &clock), counts, escalation);
    let locked_out = after_attack(&|call| acquire(&limiter, call), &clock);
    assert_eq!(locked_out.block_reason(), Some(BlockReason::Escalation));

    let clock = ManualClock::new();
    let escalation = Escalation::new("pair", Quota::new(10, quarter));
    let counts = boxed_limits(escalation.limits_by(pair), &clock);
    let limiter = Escalating::new(boxed(of_pair(), &clock), counts, escalation);
    assert!(after_attack(&|call| acquire(&limiter, call), &clock).is_allowed());
    let attacker = acquire(&limiter, &call("owner", 66));
    assert_eq!(attacker.block_reason(), Some(BlockReason::Escalation));
}

/// A cached denial counts as any other. The block replaces it.
#[test]
fn escalating_around_a_denied_cache_counts_cached_denials() {
    let clock = ManualClock::new();
    let limits = boxed(Limit::new("api", FixedWindow::new(Quota::per_hour(1))), &clock);
    let cache = DeniedCache::with_clock(limits, 16, clock.clone());
    let escalation = Escalation::new("api", Quota::per_minute(3));
    let limiter = Escalating::new(cache, boxed_limits(escalation.limits(), &clock), escalation);
    let reasons: Vec<_> = (0..8).map(|_| acquire(&limiter, "mallory").block_reason()).collect();
    let blocked = Some(BlockReason::Escalation);
    assert_eq!(reasons, [None, None, None, None, blocked, blocked, blocked, blocked]);
}

/// Also in the file of saved counts, and with another limit that denies for longer.
#[test]
fn block_reason_of_an_escalation_is_kept_and_shown_to_clients() {
    let clock = ManualClock::new();
    let limits = || {
        let quota = FixedWindow::new(Quota::per_hour(1));
        (Limit::new("api", quota), Limit::new("other", quota))
    };
    let memory: Memory<str, _> = memory(limits(), &clock);
    for (limit, reason) in [("api", BlockReason::Escalation), ("other", BlockReason::Administrator)] {
        for key in ["both", limit] {
            let duration = if limit == "api" { MINUTE } else { 2 * MINUTE };
            ready(memory.administer(key, AdminOperation::Block { limit, duration, reason }));
        }
    }
    let mut file = Vec::new();
    memory.save(&mut file).expect("saved");
    let restored: Memory<str, _> =
        Memory::builder(limits()).clock(clock.clone()).restore(&file[..]).build().expect("limits");
    for limiter in [&memory, &restored] {
        let reason = |key: &str| acquire(limiter, key).block_reason();
        assert_eq!(reason("api"), Some(BlockReason::Escalation));
        assert_eq!(reason("other"), Some(BlockReason::Administrator));
        assert_eq!(reason("both"), Some(BlockReason::Administrator), "the block that ends last");
        assert_eq!(reason("nobody"), None);
    }
    for (key, kind, text) in [
        ("api", "abnormal-usage-detected", "blocked under the rate limit \"api\", retry after 60s"),
        ("other", "quota-exceeded", "blocked under the rate limit \"other\", retry after 120s"),
    ] {
        let rejection = Rejection::from(acquire(&restored, key));
        let response: http::Response<bytes::Bytes> = Problem.render(&rejection);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let problem = std::str::from_utf8(response.body()).expect("JSON");
        let reason = if key == "api" { "escalation" } else { "administrator" };
        for field in [
            format!("\"type\":\"https://iana.org/assignments/http-problem-types#{kind}\""),
            format!("\"block-reason\":\"{reason}\""),
            format!("\"detail\":\"{}\"", text.replace('"', "\\\"")),
        ] {
            assert!(problem.contains(&field), "{field} in {problem}");
        }
    }
    clock.advance(3 * MINUTE);
    assert!(acquire(&restored, "api").is_allowed());
    let denied: http::Response<bytes::Bytes> = Problem.render(&acquire(&restored, "api").into());
    assert!(!std::str::from_utf8(denied.body()).expect("JSON").contains("block-reason"));
}

#[test]
fn invalid_escalations_are_errors() {
    let escalation = || Escalation::new("api", Quota::per_minute(3));
    let text = |result: Result<Escalation, tower_ratelimit::Error>| result.expect_err("invalid").to_string();
    assert!(text(escalation().try_block_for([])).contains("no duration is given"));
    assert!(text(escalation().try_block_for([MINUTE, SECOND])).contains("order the durations"));
    assert!(text(escalation().try_block_for([Duration::ZERO])).contains("invalid time"));
    assert!(text(escalation().try_block_for([1_440 * MINUTE])).contains("set a longer time"));
    assert!(text(escalation().try_forget_after(60 * MINUTE)).contains("set a longer time"));
    assert!(text(escalation().try_forget_after(Duration::MAX)).contains("invalid time"));
    assert_eq!(escalation().forget_after(61 * MINUTE).limit(), "api");
}
