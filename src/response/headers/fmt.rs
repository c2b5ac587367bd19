//! Writing texts without the formatting machinery, which costs more than all else in a refusal.

use std::time::Duration;

/// Appends the digits.
pub(in crate::response) fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Whole seconds, rounded up.
pub(super) fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}
