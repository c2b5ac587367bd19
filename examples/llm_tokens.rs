//! Answers of a language model, paid by tokens: an estimate is reserved before, what was used is settled after.
//!
//! ```text
//! cargo run --example llm_tokens
//! ```
//!
//! Prints what Alice has left of a thousand tokens a day: an answer that is read to its end pays what it has used, and
//! so does one that is cancelled half-way, one that gets longer than was thought, and one whose cost is told at the
//! end. The last one is refused, and told when to try again.

use tower_ratelimit::limiter::{Limiter, Reservation};
use tower_ratelimit::{AcquireOptions, Error, Memory, Quota, TokenBucket};

type Tokens = Memory<TokenBucket>;

/// An answer on its way, as the body of a response would be. The reservation goes with it: when the client goes away,
/// the server drops both.
struct Answer {
    words_to_come: u64,
    reservation: Reservation,
}

impl Iterator for Answer {
    type Item = &'static str;

    /// A word of the model's, which takes two tokens.
    fn next(&mut self) -> Option<&'static str> {
        self.words_to_come = self.words_to_come.checked_sub(1)?;
        self.reservation.spend(2);
        Some("indeed")
    }
}

/// Begins an answer, if there are tokens for what it will presumably take. The prompt is paid at once.
async fn ask(tokens: &Tokens, user: &'static str, estimate: u64, words: u64) -> Result<Option<Answer>, Error> {
    const PROMPT: u64 = 10;

    let (reservation, decision) = Reservation::reserve(tokens, user, AcquireOptions::cost(PROMPT + estimate)).await?;
    let Some(mut reservation) = reservation else {
        let hours = decision.retry_after().map_or(0, |wait| wait.as_secs().div_ceil(3600));
        println!("{estimate} tokens are not there: try again in {hours} hours");
        return Ok(None);
    };
    reservation.spend(PROMPT);
    Ok(Some(Answer { words_to_come: words, reservation }))
}

async fn left(tokens: &Tokens, user: &'static str) -> Result<u64, Error> {
    Ok(tokens.peek(user, AcquireOptions::default()).await?.remaining().unwrap_or(0))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let tokens = Memory::new(TokenBucket::new(Quota::per_day(1_000)));
    let alice = "alice";

    if let Some(answer) = ask(&tokens, alice, 400, 95).await? {
        println!("while an answer is on its way {} are left", left(&tokens, alice).await?);
        let words = answer.count();
        println!("read to its end after {words} words: {} are left", left(&tokens, alice).await?);
    }

    if let Some(mut answer) = ask(&tokens, alice, 400, 1_000).await? {
        let words = answer.by_ref().take(45).count();
        // Nobody says what it has cost: dropping it does.
        drop(answer);
        println!("cancelled after {words} words: {} are left", left(&tokens, alice).await?);
    }

    if let Some(answer) = ask(&tokens, alice, 50, 145).await? {
        let words = answer.count();
        println!("longer than was thought with {words} words: {} are left", left(&tokens, alice).await?);
    }

    if let Some(answer) = ask(&tokens, alice, 300, 0).await? {
        // Where the model's own account comes at the end, that counts.
        answer.reservation.settle(120).await?;
        println!("told to have cost 120: {} are left", left(&tokens, alice).await?);
    }

    ask(&tokens, alice, 400, 100).await?;
    Ok(())
}
