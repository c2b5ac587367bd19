use super::encode::{push_f64, push_u16};
use super::fields::Operation;
use super::limit_info::{LimitInfo, LimitSet, OwnAlgorithm};
use super::replay::DynLuaAlgorithm;
use crate::calendar::Calendar;
use crate::decision::AcquireOptions;
use crate::store::inner::{ShareRole, micros_floor};

/// The part of an operation that does not depend on the key. A batch sends each template once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationTemplate {
    pub(crate) operation: Operation,
    /// The number of the limit, from 1; 0 for all limits.
    pub(crate) limit: u16,
    /// The cost of a charge or a set; twice the time of a block, plus 1 for an escalation; the time of the expiry of a
    /// session or a lease; of a decision for each limit that keeps units free a bit, then for each limit with a part in
    /// shares a bit, then a bit for a request that holds nothing itself beside a shadow that does.
    pub(crate) arg1: u64,
    /// The maximum delay of a decision (-1 for the algorithm's default), the expiry of a hold, or the maximum that leases
    /// hold.
    pub(crate) arg2: i64,
    /// The cost of an operation on one limit. Not sent.
    pub(crate) cost: u64,
    /// For each limit of the operation the algorithm's parameters, 1 for a shadow limit, and the cost. Of a decision then
    /// for each limit that keeps units free the algorithm's parameters for the cost and these units, and with the last bit of
    /// `arg1` the maximum delay plus 1, 0 for the algorithm's default.
    pub(crate) params: Vec<u64>,
    /// The calendars of windows, each with the number of parameters before the end of its own: instants around the
    /// server's time are sent in the place of the last five.
    pub(crate) calendars: Vec<(usize, Calendar)>,
    /// For each limit the units that are kept free from the request. Empty if no limit keeps any free. Not sent.
    pub(crate) kept_free: Vec<Option<u64>>,
    /// For each limit what the request was charged before. Empty if it repeats no id. Not sent: see `IdOperation`.
    pub(crate) charges_before: Vec<u64>,
    /// Whether a fast path of the script supports the operation. Not sent.
    pub(crate) uses_fast_path: bool,
}

impl OperationTemplate {
    /// Returns the options of a decision for the limit with this index: without what it was charged before.
    pub(crate) fn options(&self, index: usize, limit: &LimitInfo, options: AcquireOptions) -> AcquireOptions {
        let options = limit.options(options);
        let charge_before = self.charges_before.get(index).copied().unwrap_or_default();
        AcquireOptions { cost: options.cost.saturating_sub(charge_before), ..options }
    }

    /// Appends the parameters of an algorithm for a cost.
    pub(super) fn push_params(&mut self, algorithm: &dyn DynLuaAlgorithm, cost: u64) {
        algorithm.params(cost, &mut self.params);
        self.calendars.extend(algorithm.calendar().map(|calendar| (self.params.len(), calendar)));
    }

    /// Appends what is sent, and to `calendars` each calendar with the place of its instants.
    pub(crate) fn encode(&self, output: &mut Vec<u8>, calendars: &mut Vec<(usize, Calendar)>) {
        push_u16(usize::from(self.operation as u16), output);
        push_u16(usize::from(self.limit), output);
        push_f64(to_f64(self.arg1), output);
        push_f64(u64::try_from(self.arg2).map_or(-1.0, to_f64), output);
        calendars.extend(self.calendars.iter().map(|&(end, calendar)| (output.len() + (end - 5) * 8, calendar)));
        for &number in &self.params {
            push_f64(to_f64(number), output);
        }
    }
}

impl LimitSet {
    /// Returns the template of an operation on all limits: see the fields `kept_free` and `charges_before`.
    pub(crate) fn template(
        &self,
        algorithms: &[OwnAlgorithm],
        operation: Operation,
        options: AcquireOptions,
        kept_free: Vec<Option<u64>>,
        charges_before: Vec<u64>,
    ) -> OperationTemplate {
        let limits = &self.limits;
        let is_hold = matches!(operation, Operation::Hold | Operation::OnceHold);
        let arg2 = if is_hold { Some(self.hold_expiry) } else { options.max_delay };
        let mut template = OperationTemplate {
            operation,
            arg2: arg2.map_or(-1, |arg2| i64::try_from(micros_floor(arg2)).unwrap_or(i64::MAX)),
            cost: options.cost,
            kept_free,
            charges_before,
            ..OperationTemplate::default()
        };
        for (index, limit) in limits.iter().enumerate() {
            let cost = template.options(index, limit, options).cost;
            if let Some(algorithm) = limit.select(index, algorithms) {
                template.push_params(algorithm, cost);
            }
            template.params.extend([u64::from(limit.facts.is_shadow), cost]);
        }
        for (index, limit) in limits.iter().enumerate() {
            let kept = template.kept_free.get(index).copied().flatten();
            if let Some(algorithm) = kept.and_then(|_| limit.select(index, algorithms)) {
                let cost = template.options(index, limit, options).keeping_free(kept).cost;
                template.push_params(algorithm, cost);
                template.arg1 |= 1 << index;
            }
        }
        for (index, _) in limits.iter().enumerate().filter(|(_, limit)| limit.facts.share.role != ShareRole::None) {
            template.arg1 |= 1 << (limits.len() + index);
        }
        let is_in_flight = |limit: &LimitInfo| limit.held_until_end && limit.facts.is_shadow;
        if is_hold && !options.hold && limits.iter().any(is_in_flight) {
            // A shadow in flight does not prevent the enforced limits from scheduling.
            template.arg1 |= 1 << (2 * limits.len());
            template.params.push(options.max_delay.map_or(0, |max_delay| micros_floor(max_delay).saturating_add(1)));
        }
        template.uses_fast_path = matches!(operation, Operation::Acquisition | Operation::Hold)
            && template.arg1 == 0
            && limits.iter().enumerate().all(|(index, limit)| {
                let (algorithm, options) = (limit.select(index, algorithms), limit.options(options));
                options.hold == is_hold && algorithm.is_some_and(|algorithm| algorithm.uses_fast_path(options))
            });
        template
    }
}

/// The maximum up to which a double represents every integer.
pub(crate) const MAX_EXACT: u64 = 1 << 53;

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number.min(MAX_EXACT) as f64
}
