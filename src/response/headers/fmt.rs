//! Writes numbers without the formatting machinery of the standard library, which dominates the cost of a denial.

use std::time::Duration;

/// Appends the decimal digits of `number`.
pub(in crate::response) fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Returns whole seconds, rounded up.
pub(super) fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
