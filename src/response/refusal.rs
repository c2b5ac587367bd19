use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, Source, Standing};
use crate::error::Error;
use crate::key::Missing;

/// Why a request was not let through.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A limiter, or a policy in its place, said no.
    Limited(Decision),
    /// It should have a key, and has none.
    MissingKey(Missing),
    /// The limiter could not decide.
    Unavailable(Error),
}

impl Refusal {
    /// The decision, if a limiter made one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Limited(decision) => Some(decision),
            Self::MissingKey(_) | Self::Unavailable(_) => None,
        }
    }

    /// After what time to try again, if that is known and is ever going to help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision().and_then(Decision::retry_after)
    }

    /// Whether the client used up its quota: 429 in HTTP. Otherwise the request or the server is at fault.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.decision().is_some_and(|decision| decision.source() != Source::Policy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey(missing) => missing.fmt(f),
            Self::Unavailable(_) => f.write_str("the rate limiter can't decide at the moment"),
            Self::Limited(decision) if decision.source() == Source::Policy => {
                f.write_str("the rate limiter can't decide at the moment")?;
                fmt_retry(decision, f)
            }
            Self::Limited(decision) => {
                f.write_str("rate limit")?;
                if let Some(standing) = decision.standing() {
                    write!(f, " {:?}", standing.name())?;
                }
                f.write_str(" exceeded")?;
                fmt_retry(decision, f)
            }
        }
    }
}

fn fmt_retry(decision: &Decision, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (decision.retry_after(), decision.standing().map(Standing::limit)) {
        (Some(wait), _) => write!(f, ", retry after {wait:?}"),
        (None, Some(limit)) => write!(f, ", the request costs more than the limit of {limit} can ever hold"),
        (None, None) => Ok(()),
    }
}
