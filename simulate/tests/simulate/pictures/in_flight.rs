//! A limit on requests in flight, with requests of different lengths.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt as _;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{AcquireOptions, Clock as _, InFlight, Limiter as _, ManualClock, Memory, Timestamp};

use tower_ratelimit_simulate::chart::{Panel, draw};
use tower_ratelimit_simulate::{Bin, Series};

const SPAN: Duration = Duration::from_secs(30);
const BIN: Duration = Duration::from_millis(250);
/// The time between two requests.
const GAP: Duration = Duration::from_secs(1);

pub(super) fn picture() -> String {
    let panels = [
        ("at most 3 in flight: one request per second, and each takes 6 s", 6),
        ("at most 3 in flight: one request per second, and each takes 2 s", 2),
    ];
    let panels = panels.map(|(title, seconds)| Panel { title: title.to_owned(), series: series(seconds) });
    draw(&panels, 1, 800).expect("a picture")
}

/// Acquires from the limiter in steps of one bin, and drops each guard at the end of its request.
fn series(seconds: u64) -> Series {
    let clock = ManualClock::new();
    let limiter = Memory::builder(InFlight::new(3)).clock(clock.clone()).build().expect("a limiter");
    let options = AcquireOptions::default().keep_guard();
    let mut running: VecDeque<(Timestamp, Option<Held>)> = VecDeque::new();
    let mut series = Series { span: SPAN, bins: Vec::new(), remaining: Vec::new(), limit: 3 };
    while clock.now() < ManualClock::START.saturating_add(SPAN) {
        let now = clock.now();
        running.retain(|(end, _)| *end > now);
        let since = now.saturating_since(ManualClock::START).as_micros();
        let mut bin = Bin::default();
        if since.is_multiple_of(GAP.as_micros()) {
            let Ok(Ok(outcome)) = limiter.acquire("client", options).try_ready() else { panic!("no decision") };
            if outcome.decision.is_allowed() {
                bin = Bin { allowed: 1, starts: 1, ..bin };
                running.push_back((now.saturating_add(Duration::from_secs(seconds)), outcome.held));
            } else {
                bin.denied = 1;
            }
        }
        series.bins.push(bin);
        let decision =
            limiter.peek("client", options).now_or_never().expect("a decision in memory").expect("a decision");
        series.remaining.push((u64::try_from(since).expect("small"), decision.remaining().expect("one limit")));
        clock.advance(BIN);
    }
    series
}
