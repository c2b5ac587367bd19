//! Conversions between durations and whole microseconds, the crate's tick.

use std::time::Duration;

pub(crate) fn ticks(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Saturates at 64 bits.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
