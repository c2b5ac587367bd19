use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::headers::push_number;
use crate::decision::{Decision, DecisionSource};
use crate::error::Error;
use crate::key::Missing;

/// Why a request was not let through.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limiter, or a policy in its place, said no.
    OverLimit(Decision),
    /// It should have a key, and has none.
    MissingKey(Missing),
    /// The limiter could not decide.
    Unavailable(Error),
}

impl Rejection {
    /// The decision, if a limiter made one.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::OverLimit(decision) => Some(decision),
            Self::MissingKey(_) | Self::Unavailable(_) => None,
        }
    }

    /// After what time to try again, if that is ever going to help. A second where the limiter could not decide.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::OverLimit(decision) => decision.retry_after(),
            Self::Unavailable(_) => Some(Duration::from_secs(1)),
            Self::MissingKey(_) => None,
        }
    }

    /// Whether the client used up its quota: 429 in HTTP. Otherwise the request or the server is at fault.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.decision().is_some_and(|decision| decision.source() != DecisionSource::Policy)
    }
}

impl Rejection {
    /// What `Display` writes.
    pub(super) fn to_text(&self) -> Cow<'_, str> {
        let decision = match self {
            // Details are for the log: they would tell clients about the server.
            Self::MissingKey(missing) if missing.is_server_error() => return Cow::Borrowed(MISCONFIGURED),
            Self::MissingKey(missing) => return missing.reason(),
            Self::Unavailable(_) => return Cow::Borrowed(UNDECIDED),
            Self::OverLimit(decision) => decision,
        };
        let mut text = String::with_capacity(80);
        match decision.most_restrictive().filter(|_| self.is_over_limit()) {
            None if self.is_over_limit() => text.push_str("rate limit exceeded"),
            None => text.push_str(UNDECIDED),
            Some(standing) => {
                for part in ["rate limit \"", standing.name(), "\" exceeded"] {
                    text.push_str(part);
                }
            }
        }
        if let Some(retry_after) = decision.retry_after() {
            text.push_str(", retry after ");
            push_seconds(&mut text, retry_after);
        } else if let Some(standing) = decision.most_restrictive() {
            text.push_str(", the request costs more than the limit of ");
            push_number(&mut text, standing.limit());
            text.push_str(" can ever hold");
        }
        Cow::Owned(text)
    }
}

const UNDECIDED: &str = "the rate limiter can't decide at the moment";
const MISCONFIGURED: &str = "the server is misconfigured";

/// Seconds with as many of the three decimals as it takes, rounded up: `1.5s`.
fn push_seconds(text: &mut String, span: Duration) {
    let millis = u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    push_number(text, millis / 1_000);
    let fraction = millis % 1_000;
    if fraction > 0 {
        let digits = [fraction / 100, fraction / 10 % 10, fraction % 10];
        let kept = digits.iter().rposition(|&digit| digit > 0).map_or(0, |last| last + 1);
        text.push('.');
        digits[..kept].iter().for_each(|&digit| push_number(text, digit));
    }
    text.push('s');
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}
