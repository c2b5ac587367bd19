//! Replies that come after the callers' deadline: what is charged although no caller waits.

use std::time::Duration;

use super::{Link, MS, OVERLOAD, SPAN, capacity, offer, slow_server, start};

#[tokio::test(start_paused = true)]
async fn jitter_below_the_deadline_charges_only_what_is_answered() {
    let link = Link { jitter: 10_000, ..slow_server(5) };
    for per_ms in [1, 10, OVERLOAD] {
        let (world, limiter) = start(link, MS * 50);
        let goodput = offer(&world, &limiter, per_ms, SPAN).await;
        assert!(goodput.charged * 100 <= goodput.answered * 105, "{goodput:?}");
        assert!(goodput.answered * 10 >= goodput.offered.min(capacity(SPAN)) * 4, "{goodput:?}");
    }
}

/// A link with a jitter of 200 ms, longer than the deadline. Replies come in order, so nearly all come too late. Then few
/// decisions are sent.
#[tokio::test(start_paused = true)]
async fn jitter_above_the_deadline_charges_little() {
    let (world, limiter) = start(Link { jitter: 100_000, ..slow_server(5) }, MS * 50);
    let goodput = offer(&world, &limiter, 1, Duration::from_secs(3)).await;
    assert!(goodput.charged <= goodput.answered + 60, "{goodput:?}");
}

/// One reply of two hundred is late, and those behind it. The other decisions are made.
#[tokio::test(start_paused = true)]
async fn rare_slow_replies_stop_no_other_decision() {
    let (world, limiter) = start(Link { slow_reply: Some((200, 60_000)), ..slow_server(5) }, MS * 50);
    let goodput = offer(&world, &limiter, 1, Duration::from_secs(3)).await;
    assert!(goodput.answered * 10 >= goodput.offered * 6, "{goodput:?}");
    assert!(goodput.charged * 100 <= goodput.answered * 110, "{goodput:?}");
}
