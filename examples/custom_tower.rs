//! A limiter in front of a service of one's own, without HTTP: a printing press, three posters a minute for each team.
//!
//! ```text
//! cargo run --example custom_tower
//! ```
//!
//! Prints what becomes of each order. The red team's fourth within the minute is refused with the exact time to wait,
//! and is printed after that; the blue team has its own count, maintenance has none, and an order that does not say
//! whose it is, is refused. The clock is moved by hand, so it ends at once.

use std::fmt;

use tower::{Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::{Extracted, MissingKey};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{Gcra, ManualClock, Memory, Quota, RateLimitLayer};

/// A request of a protocol of our own.
#[derive(Clone, Copy)]
struct Order {
    team: Option<&'static str>,
    poster: &'static str,
}

async fn print(order: Order) -> Result<String, PaperJam> {
    if order.poster == "wallpaper" { Err(PaperJam) } else { Ok(format!("[{}]", order.poster)) }
}

/// An error of the service's own.
#[derive(Debug)]
struct PaperJam;

impl fmt::Display for PaperJam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the press has jammed")
    }
}

impl std::error::Error for PaperJam {}

/// Whose an order is. To be under no limit is always said in so many words; a missing name never lifts one.
fn whose(order: &Order) -> Extracted<&'static str> {
    match order.team {
        Some("maintenance") => Extracted::Exempt,
        Some(team) => Extracted::Key(team),
        None => Extracted::Missing(MissingKey::from_request("the order does not say whose it is")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(3))).clock(clock.clone()).build()?;
    let mut press = ServiceBuilder::new()
        // Without HTTP there is no status to refuse with: a refusal is an error.
        .layer(RateLimitLayer::new(whose, limiter).responder(RejectWithError))
        .service_fn(print);

    let red = ["spring fair", "lost cat", "flea market", "open day"].map(|poster| (Some("red"), poster));
    let blue = ["jazz night", "wallpaper"].map(|poster| (Some("blue"), poster));
    let others = [(Some("maintenance"), "test page"), (None, "buy cheap")];
    for (team, poster) in red.into_iter().chain(blue).chain(others) {
        let order = Order { team, poster };
        let name = team.unwrap_or("?");
        let result = press.ready().await?.call(order).await;
        println!("{name:>11}: {}", tell(&result));

        // The wait is exact: after it the same order is printed, a microsecond earlier it would not be.
        if let Some(wait) = result.err().and_then(|error| refused(&error)?.rejection().retry_after()) {
            clock.advance(wait);
            println!("{name:>11}: {}, after waiting {wait:?}", tell(&press.ready().await?.call(order).await));
        }
    }
    Ok(())
}

/// The limiter's error, if it is one; else it is the service's own.
fn refused(error: &BoxError) -> Option<&Rejected> {
    error.downcast_ref()
}

fn tell(result: &Result<String, BoxError>) -> String {
    match result {
        Ok(sheet) => format!("printed {sheet}"),
        Err(error) if refused(error).is_some() => format!("not printed: {error}"),
        Err(error) => format!("failed: {error}"),
    }
}
