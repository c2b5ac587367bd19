use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::decision::{Decision, DecisionSource, ceil_seconds};
use crate::error::Error;
use crate::key::MissingKey;

/// The reason why the layer does not forward a request.
///
/// `Display` writes a text for clients: the text holds no details about the server. As an error, a rejection has the error of
/// the limiter as its source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limiter denied the request, or a policy did because the limiter was unavailable.
    OverLimit(Decision),
    /// The extractor found no key.
    MissingKey(MissingKey),
    /// The limiter could not decide, or the id of a hold is one of a hold that has [ended](Error::is_already_settled) or has
    /// [another cost](Error::is_id_conflict).
    Unavailable(Error),
}

impl Rejection {
    /// Returns the decision, if a limiter or a policy made one.
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            Self::OverLimit(decision) => Some(decision),
            Self::MissingKey(_) | Self::Unavailable(_) => None,
        }
    }

    /// Returns the time after which a retry may succeed: one second if the limiter could not decide.
    ///
    /// `None` if no retry succeeds.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::OverLimit(decision) => decision.retry_after(),
            Self::Unavailable(_) if !self.is_misconfigured() && !self.repeats_id() => Some(Duration::from_secs(1)),
            Self::Unavailable(_) | Self::MissingKey(_) => None,
        }
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up and at least 1: the value of the header
    /// `Retry-After`.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(|wait| ceil_seconds(wait).max(1))
    }

    /// Whether the server is misconfigured: status 500 in HTTP. Only observers receive the cause.
    ///
    /// The request lacks data that the server must add, or the limiter returned an error for which
    /// [`is_config`](Error::is_config) or [`is_unsupported`](Error::is_unsupported) holds.
    pub fn is_misconfigured(&self) -> bool {
        match self {
            Self::OverLimit(_) => false,
            Self::MissingKey(missing) => missing.is_server_error(),
            Self::Unavailable(error) => error.is_misconfigured(),
        }
    }

    /// Whether a limit denied the request: status 429 in HTTP.
    ///
    /// Otherwise the request has no key, or the limiter was unavailable.
    pub fn is_over_limit(&self) -> bool {
        self.decision().is_some_and(|decision| decision.source() != DecisionSource::NoLimit)
    }

    /// Whether the request repeats a reservation id that holds nothing more: status 409 in HTTP.
    pub(super) fn repeats_id(&self) -> bool {
        match self {
            Self::OverLimit(decision) => decision.is_repeat(),
            Self::Unavailable(error) => error.is_conflict(),
            Self::MissingKey(_) => false,
        }
    }

    /// Returns the text that `Display` writes.
    pub(super) fn to_text(&self) -> Cow<'_, str> {
        let decision = match self {
            // The reason of a misconfigured server reaches observers only.
            _ if self.is_misconfigured() => return Cow::Borrowed(MISCONFIGURED_TEXT),
            Self::MissingKey(missing) => return missing.reason(),
            _ if self.repeats_id() => return Cow::Borrowed(REPEATED_ID_TEXT),
            Self::Unavailable(_) => return Cow::Borrowed(UNAVAILABLE_TEXT),
            Self::OverLimit(decision) => decision,
        };
        let mut text = String::with_capacity(80);
        match decision.most_restrictive().filter(|_| self.is_over_limit()) {
            None if self.is_over_limit() => text.push_str("rate limit exceeded"),
            None => text.push_str(UNAVAILABLE_TEXT),
            Some(limit) if limit.is_blocked() => {
                for part in ["blocked under the rate limit \"", limit.name(), "\""] {
                    text.push_str(part);
                }
            }
            Some(limit) => {
                for part in ["rate limit \"", limit.name(), "\" exceeded"] {
                    text.push_str(part);
                }
            }
        }
        if let Some(retry_after) = decision.retry_after() {
            text.push_str(", retry after ");
            push_seconds(&mut text, retry_after);
        } else if let Some(limit) = decision.most_restrictive() {
            text.push_str(": the cost of the request is above the limit of ");
            push_number(&mut text, limit.limit());
        }
        Cow::Owned(text)
    }
}

/// The rejection of a request that a decision denies.
impl From<Decision> for Rejection {
    fn from(denied: Decision) -> Self {
        Self::OverLimit(denied)
    }
}

/// The rejection of a request without a key.
impl From<MissingKey> for Rejection {
    fn from(missing: MissingKey) -> Self {
        Self::MissingKey(missing)
    }
}

/// The rejection of a request about which the limiter could not decide.
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::Unavailable(error)
    }
}

const UNAVAILABLE_TEXT: &str = "rate limiter unavailable";
const REPEATED_ID_TEXT: &str = "a request with this id was admitted before";
const MISCONFIGURED_TEXT: &str = "server misconfigured";

/// Appends the decimal digits of `number`, without the formatting machinery of the standard library, which dominates the
/// cost of a denial.
fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Appends seconds with at most three decimals, rounded up and without trailing zeros: `1.5s`.
fn push_seconds(text: &mut String, duration: Duration) {
    let millis = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    push_number(text, millis / 1_000);
    let fraction = millis % 1_000;
    if fraction > 0 {
        let digits = [fraction / 100, fraction / 10 % 10, fraction % 10];
        let significant = digits.iter().rposition(|&digit| digit > 0).map_or(0, |last| last + 1);
        text.push('.');
        digits[..significant].iter().for_each(|&digit| push_number(text, digit));
    }
    text.push('s');
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unavailable(error) => Some(error),
            Self::OverLimit(_) | Self::MissingKey(_) => None,
        }
    }
}
