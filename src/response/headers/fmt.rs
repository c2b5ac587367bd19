//! Writes numbers without the formatting machinery of the standard library, which dominates the cost of a denial.

/// Appends the decimal digits of `number`.
pub(in crate::response) fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}
