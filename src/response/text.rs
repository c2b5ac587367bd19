//! Writing texts without the formatting machinery, which costs more than all else in a refusal.

/// Appends the digits.
pub(super) fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}
