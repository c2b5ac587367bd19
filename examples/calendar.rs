//! A month that ends while the program runs: a plan of three calls a month from the 15th, in a zone two hours ahead of UTC.
//!
//! ```text
//! cargo run --example calendar
//! ```
//!
//! Prints each call with its local time: whether the plan allows the call, how many calls are left, and when a denied call can be retried.
//! A test runs the same calls in Redis, whose clock it sets.

use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, Calendar, Clock as _, Error, FixedWindow, Limit, Limiter, ManualClock, Memory, Timestamp,
};

const PLAN: Calendar = Calendar::monthly_on(15).utc_offset_minutes(120);

/// The local times of the calls, and the seconds since `START`. The year 2027 has no leap day.
const CALLS: [(&str, u64); 7] = [
    ("23:58:00", 0),
    ("23:58:30", 30),
    ("23:59:00", 60),
    ("23:59:30", 90),
    ("23:59:59", 119),
    ("00:00:00", 120),
    ("00:00:01", 121),
];

/// 14 February 2027, 23:58 in the plan's zone: 21:58 UTC.
const START: Timestamp = Timestamp::from_micros(1_802_642_280_000_000);

pub(crate) fn plan() -> Limit<FixedWindow> {
    Limit::new("plan", FixedWindow::calendar(3, PLAN))
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::at(START)
}

/// Calls at the local times, and returns a line for each call.
pub(crate) async fn call<L: Limiter<str>>(limiter: &L, clock: &ManualClock) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    for (local, since) in CALLS {
        clock.set(START.saturating_add(Duration::from_secs(since)));
        let decision = limiter.acquire("acme", AcquireOptions::default()).await?.decision;
        let verdict = match decision.retry_after() {
            None => "allowed".to_owned(),
            Some(wait) => format!("denied, retry after {} s", wait.as_secs()),
        };
        let window = PLAN.window_at(clock.now());
        let days = window.end.saturating_since(window.start).as_secs() / 86_400;
        lines.push(format!(
            "{local} {verdict}: {} of 3 left, in a month of {days} days",
            decision.remaining().unwrap_or(0)
        ));
    }
    Ok(lines)
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "a test includes this file")]
async fn main() -> Result<(), Error> {
    let clock = clock();
    let limiter = Memory::<str, _>::builder(plan()).clock(clock.clone()).build()?;
    for line in call(&limiter, &clock).await? {
        println!("{line}");
    }
    Ok(())
}
