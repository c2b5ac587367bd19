//! A limit for a custom service without HTTP: a printing press that prints three posters per minute for each team.
//!
//! ```text
//! cargo run --example custom_tower
//! ```
//!
//! Prints the result of each print job. The fourth job of the red team is rejected with the exact time to wait, and
//! succeeds after that time. The blue team has its own limit, maintenance has none, and a job without a team is
//! rejected. The example uses a manual clock and ends immediately.

use std::fmt;

use tower::{Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::{Extracted, MissingKey};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejection};
use tower_ratelimit::{Gcra, ManualClock, Memory, Quota, RateLimitLayer};

/// A request of a custom protocol.
#[derive(Clone, Copy)]
struct PrintJob {
    team: Option<&'static str>,
    poster: &'static str,
}

async fn print(job: PrintJob) -> Result<String, PaperJam> {
    if job.poster == "wallpaper" { Err(PaperJam) } else { Ok(format!("[{}]", job.poster)) }
}

/// An error of the service itself.
#[derive(Debug)]
struct PaperJam;

impl fmt::Display for PaperJam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the press has jammed")
    }
}

impl std::error::Error for PaperJam {}

/// The key extractor. An exemption is explicit: a job without a team is not exempt.
fn team_of(job: &PrintJob) -> Extracted<&'static str> {
    match job.team {
        Some("maintenance") => Extracted::Exempt,
        Some(team) => Extracted::Key(team),
        None => Extracted::Missing(MissingKey::from_request("the print job names no team")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(3))).clock(clock.clone()).build()?;
    let mut press = ServiceBuilder::new()
        // Without HTTP there is no status code: a rejection is an error.
        .layer(RateLimitLayer::new(team_of, limiter).responder(RejectWithError))
        .map_err(BoxError::from)
        .service_fn(print);

    let red = ["spring fair", "lost cat", "flea market", "open day"].map(|poster| (Some("red"), poster));
    let blue = ["jazz night", "wallpaper"].map(|poster| (Some("blue"), poster));
    let others = [(Some("maintenance"), "test page"), (None, "buy cheap")];
    for (team, poster) in red.into_iter().chain(blue).chain(others) {
        let job = PrintJob { team, poster };
        let name = team.unwrap_or("?");
        let result = press.ready().await?.call(job).await;
        println!("{name:>11}: {}", describe(&result));

        // The wait is exact: after it the same order is printed, a microsecond earlier it would not be.
        if let Some(wait) = result.err().and_then(|error| error.downcast_ref::<Rejection>()?.retry_after()) {
            clock.advance(wait);
            println!("{name:>11}: {}, after waiting {wait:?}", describe(&press.ready().await?.call(job).await));
        }
    }
    Ok(())
}

/// Returns the rejection if the error is one. Other errors are the service's own.
fn rejection_of(error: &BoxError) -> Option<&Rejection> {
    error.downcast_ref()
}

fn describe(result: &Result<String, BoxError>) -> String {
    match result {
        Ok(sheet) => format!("printed {sheet}"),
        Err(error) if rejection_of(error).is_some() => format!("not printed: {error}"),
        Err(error) => format!("failed: {error}"),
    }
}
