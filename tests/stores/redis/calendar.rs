//! Calendar windows in Redis: the decisions are those in memory, by the server's clock.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tower_ratelimit::limiter::Held;
use tower_ratelimit::store::{IntoRedisLimits, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, Calendar, Clock, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, MemoryBuilder, Quota,
    Redis, SystemClock, Timestamp, Weekday, per_key,
};

#[path = "../../../examples/calendar.rs"]
mod example;

use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::random::Random;
use crate::server::Server;
use crate::ttl::scripts;

type FixedHasher = BuildHasherDefault<DefaultHasher>;

const HOUR: u64 = 3_600_000_000;

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    tier: usize,
}

/// Limits by several calendars beside a rate, and calendars that a key changes.
fn limits() -> impl MemoryLimits<Caller, FixedHasher> + IntoRedisLimits<Caller> + Clone + 'static {
    let berlin = Calendar::monthly_on(31).zone("Europe/Berlin").expect("a zone");
    let tiers =
        [Calendar::monthly(), Calendar::weekly_from(Weekday::Sunday), Calendar::daily().utc_offset_minutes(-570)];
    let tier = per_key(move |caller: &Caller| FixedWindow::calendar(9, tiers[caller.tier]));
    (
        Limit::new("month", FixedWindow::calendar(25, berlin)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("tier", tier).keyed_by(|caller: &Caller| caller.user),
        Limit::new("smooth", Gcra::new(Quota::per_hour(20))).keyed_by(|_: &Caller| ()),
        Limit::new("year", FixedWindow::calendar(200, Calendar::yearly())).keyed_by(|_: &Caller| ()).shadow(),
    )
}

/// Random steps across ends of months, leap days and changes of the clocks. The clock of the process is years off.
#[tokio::test]
async fn memory_and_redis_agree_on_calendar_windows() {
    let server = Server::start();
    for seed in 1..=4 {
        // From January of 2027 and 2028, which is a leap year.
        let clock = ManualClock::at(Timestamp::from_micros(
            if seed % 2 == 0 { 1_800_000_000 } else { 1_831_000_000 } * 1_000_000,
        ));
        let memory = MemoryBuilder::new(limits()).hasher(FixedHasher::default()).clock(clock.clone());
        let memory = memory.build().expect("limits");
        let redis = Redis::builder(server.open(), &format!("calendars {seed}"), limits())
            .clock_for_tests(clock.clone())
            .hold_expiry(ONE_DAY)
            .deadline(LONG_DEADLINE)
            .build()
            .expect("limits");
        let mut random = Random::new(seed);
        let mut held: Vec<(Held, Held)> = Vec::new();
        let mut wait = None;
        for step in 0..600 {
            let now = clock.now().as_micros();
            // A hold in Redis expires, and one in memory does not.
            if step % 20 == 19 {
                for (ours, theirs) in held.drain(..) {
                    ours.settle(1).await.expect("done");
                    theirs.settle(1).await.expect("done");
                }
            }
            let is_early = step % 20 < 10;
            match random.below(8) {
                // Around the end of the window that denies.
                0 => {
                    if let Some(wait) = wait.take().filter(|_| is_early) {
                        clock.advance(Duration::saturating_sub(wait, Duration::from_micros(random.below(3))));
                    }
                }
                1 if is_early => clock.advance(Duration::from_micros(random.below(400) * HOUR / 10)),
                2 if is_early && random.below(4) == 0 => {
                    clock.advance(Duration::from_micros(random.below(1_500) * HOUR));
                }
                3 if random.below(8) == 0 => clock.set(Timestamp::from_micros(now - random.below(60_000_000))),
                _ => {}
            }
            let caller =
                Caller { user: random.below(2), tier: if random.below(10) == 0 { random.index(3) } else { 0 } };
            let options = AcquireOptions::cost(random.below(4) + 1).detail(Detail::All);
            let options = if !is_early && step % 20 < 19 && random.below(3) == 0 { options.hold() } else { options };
            if random.below(5) == 0 && !held.is_empty() {
                let (ours, theirs) = held.swap_remove(random.index(held.len()));
                let actual = random.below(ours.cost() + 2);
                ours.settle(actual).await.expect("done");
                theirs.settle(actual).await.expect("done");
            }
            let here = memory.acquire(&caller, options).await.expect("an answer");
            let there = acquire(&redis, &caller, options).await.expect("an answer");
            assert_eq!(here.decision, there.decision, "{seed} {step} {caller:?} {options:?} at {now}");
            wait = here.decision.retry_after().or(wait);
            held.extend(here.held.zip(there.held));
        }
    }
}

/// Within the window before the client's own, and that after it, the client's clock costs nothing. With any other clock, one
/// decision takes a second round trip, and the decisions are the same.
#[tokio::test]
async fn wrong_clock_of_a_process_takes_one_more_round_trip() {
    let server = Server::start();
    let month = 31 * 24 * HOUR;
    let minutes = HOUR / 12;
    let ahead: [(&str, fn(u64, u64) -> u64, u64, u64); 4] = [
        ("minutes ahead", u64::saturating_add, minutes, 0),
        ("minutes behind", u64::saturating_sub, minutes, 0),
        ("three months ahead", u64::saturating_add, 3 * month, 1),
        ("three months behind", u64::saturating_sub, 3 * month, 1),
    ];
    for (name, shift, by, more) in ahead {
        server.command(&["CONFIG", "RESETSTAT"]);
        let clock = ManualClock::at(Timestamp::from_micros(shift(SystemClock::new().now().as_micros(), by)));
        let limit = FixedWindow::calendar(2, Calendar::monthly_on(15).utc_offset_minutes(120));
        let limiter: Redis<str> = Redis::builder(server.open(), name, limit)
            .clock_for_tests(clock.clone())
            .deadline(LONG_DEADLINE)
            .build()
            .expect("a limit");
        for allowed in [true, true, false] {
            let decision = acquire(&limiter, "key", AcquireOptions::default()).await.expect("an answer").decision;
            assert_eq!(decision.is_allowed(), allowed, "{name}");
        }
        let window = Calendar::monthly_on(15).utc_offset_minutes(120).window_at(clock.now());
        let denied = acquire(&limiter, "key", AcquireOptions::default()).await.expect("an answer").decision;
        assert_eq!(denied.retry_after(), Some(window.end.saturating_since(clock.now())), "{name}");
        assert_eq!(scripts(&server), 4 + more, "{name}");
    }
}

/// The output of the example in the guide, by Redis with a changed clock.
#[tokio::test]
async fn month_that_ends_is_the_one_of_the_guide() {
    let page = include_str!("../../../docs/everyday.md");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("a block");
    let (server, clock) = (Server::start(), example::clock());
    let limiter: Redis<str> = Redis::builder(server.open(), "month", example::plan())
        .clock_for_tests(clock.clone())
        .deadline(LONG_DEADLINE)
        .build()
        .expect("a limit");
    assert_eq!(example::call(&limiter, &clock).await.expect("answers"), block.lines().collect::<Vec<_>>());
}
