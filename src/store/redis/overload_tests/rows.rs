//! Twice the capacity for 0.7 s on several links: what is answered, and what is charged without an answer.

use super::{Link, MS, offer, start};

/// A server that spends 10 us on a call and 90 us on a decision: about 7,900 decisions in 0.7 s and one deadline.
const SERVER: Link = Link { delay: 0, jitter: 0, per_call: 10, per_operation: 90, slow_reply: None };
const OFFERED: u64 = 20;

#[tokio::test(start_paused = true)]
async fn overload_of_several_links() {
    // In milliseconds: round trip, jitter of each direction and deadline; then the least number of answers, and the most
    // charges without one.
    let rows = [
        (0, 0, 50, 7_900, 0),
        (5, 0, 50, 7_800, 0),
        (25, 0, 50, 7_300, 80),
        (40, 0, 50, 6_400, 700),
        (200, 0, 500, 8_500, 20),
        (5, 5, 50, 7_500, 0),
        (5, 10, 50, 7_400, 20),
    ];
    for (round_trip, jitter, deadline, least, most) in rows {
        let link = Link { delay: round_trip * 500, jitter: jitter * 1000, ..SERVER };
        let (world, limiter) = start(link, MS * deadline);
        let goodput = offer(&world, &limiter, OFFERED, MS * 700).await;
        let unanswered = goodput.charged - goodput.answered;
        let row = format!(
            "{round_trip}+{jitter}/{deadline} ms: {} answered, {unanswered} charged without an answer",
            goodput.answered
        );
        println!("{row}");
        assert!(goodput.answered >= least && unanswered <= most, "{row}");
    }
}
