//! Spans of time in whole microseconds, the crate's tick.

use std::time::Duration;

pub(crate) fn ticks(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// What is longer than 64 bits can say counts as the longest.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
