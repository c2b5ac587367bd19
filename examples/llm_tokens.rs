//! Language model completions that cost tokens: holds an estimate before, and settles the actual cost after.
//!
//! ```text
//! cargo run --example llm_tokens
//! ```
//!
//! Prints how many of a thousand tokens per day Alice has left: after a completed stream, a cancelled stream, a
//! stream that exceeds its estimate, and a stream whose cost the model reports at its end. The last request is denied
//! with a time to retry.

use tower_ratelimit::limiter::Reservation;
use tower_ratelimit::{AcquireOptions, Error, Limiter, Memory, Quota, TokenBucket};

type Tokens = Memory<str, TokenBucket>;

/// A completion that is streamed as a response body. If the client disconnects, the server drops it with its
/// reservation.
struct Completion {
    words_left: u64,
    reservation: Reservation,
}

impl Iterator for Completion {
    type Item = &'static str;

    /// Returns the next word, which costs two tokens.
    fn next(&mut self) -> Option<&'static str> {
        self.words_left = self.words_left.checked_sub(1)?;
        self.reservation.spend(2);
        Some("indeed")
    }
}

/// Starts a completion if the prompt and the estimate fit into the limit.
async fn start(tokens: &Tokens, user: &'static str, estimate: u64, words: u64) -> Result<Option<Completion>, Error> {
    const PROMPT: u64 = 10;

    let (reservation, decision) = Reservation::reserve(tokens, user, AcquireOptions::cost(PROMPT + estimate)).await?;
    let Some(mut reservation) = reservation else {
        let hours = decision.retry_after().map_or(0, |wait| wait.as_secs().div_ceil(3600));
        println!("{estimate} tokens are not available: retry in {hours} hours");
        return Ok(None);
    };
    reservation.spend(PROMPT);
    Ok(Some(Completion { words_left: words, reservation }))
}

async fn left(tokens: &Tokens, user: &'static str) -> Result<u64, Error> {
    Ok(tokens.peek(user, AcquireOptions::default()).await?.remaining().unwrap_or(0))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let tokens = Memory::new(TokenBucket::new(Quota::per_day(1_000)));
    let alice = "alice";

    if let Some(completion) = start(&tokens, alice, 400, 95).await? {
        println!("during the first stream: {} left", left(&tokens, alice).await?);
        let words = completion.count();
        println!("completed after {words} words: {} left", left(&tokens, alice).await?);
    }

    if let Some(mut completion) = start(&tokens, alice, 400, 1_000).await? {
        let words = completion.by_ref().take(45).count();
        // The drop settles the reservation at the tokens spent so far.
        drop(completion);
        println!("cancelled after {words} words: {} left", left(&tokens, alice).await?);
    }

    if let Some(completion) = start(&tokens, alice, 50, 145).await? {
        let words = completion.count();
        println!("exceeded the estimate after {words} words: {} left", left(&tokens, alice).await?);
    }

    if let Some(completion) = start(&tokens, alice, 300, 0).await? {
        // The model reported the cost at the end of the stream.
        completion.reservation.settle(120).await?;
        println!("settled at 120 tokens: {} left", left(&tokens, alice).await?);
    }

    start(&tokens, alice, 400, 100).await?;
    Ok(())
}
