use super::encode::{push_f64, push_u16};
use super::fields::Operation;

/// The part of an operation that does not depend on the key. A batch sends each template once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationTemplate {
    pub(crate) operation: Operation,
    /// The number of the limit, from 1; 0 for all limits.
    pub(crate) limit: u16,
    /// The cost of a charge or a set; twice the time of a block, plus 1 for an escalation; the time of the expiry of a
    /// session or a lease; of a decision for each limit that keeps units free a bit, then for each limit with a part in
    /// shares a bit.
    pub(crate) arg1: u64,
    /// The maximum delay of a decision (-1 for the algorithm's default), the expiry of a hold, or the maximum that leases
    /// hold.
    pub(crate) arg2: i64,
    /// The cost of an operation on one limit. Not sent.
    pub(crate) cost: u64,
    /// For each limit of the operation the algorithm's parameters, 1 for a shadow limit, and the cost. Of a decision then
    /// for each limit that keeps units free the algorithm's parameters for the cost and these units.
    pub(crate) params: Vec<u64>,
    /// For each limit the units that are kept free from the request. Empty if no limit keeps any free. Not sent.
    pub(crate) kept_free: Vec<Option<u64>>,
    /// Whether the script's fast path supports the operation. Not sent.
    pub(crate) uses_fast_path: bool,
}

impl OperationTemplate {
    pub(crate) fn encode(&self, output: &mut Vec<u8>) {
        push_u16(usize::from(self.operation as u16), output);
        push_u16(usize::from(self.limit), output);
        push_f64(to_f64(self.arg1), output);
        push_f64(u64::try_from(self.arg2).map_or(-1.0, to_f64), output);
        for &number in &self.params {
            push_f64(to_f64(number), output);
        }
    }
}

/// The maximum up to which a double represents every integer.
pub(crate) const MAX_EXACT: u64 = 1 << 53;

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number.min(MAX_EXACT) as f64
}
