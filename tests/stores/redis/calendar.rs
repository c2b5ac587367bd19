//! Calendar windows in Redis: the decisions are those in memory, by the server's clock.

use tower_ratelimit::{AcquireOptions, Calendar, Clock, FixedWindow, ManualClock, Redis, SystemClock, Timestamp};

#[path = "../../../examples/calendar.rs"]
mod example;

use crate::helpers::{LONG_DEADLINE, acquire};
use crate::server::Server;
use crate::ttl::scripts;

const HOUR: u64 = 3_600_000_000;

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
