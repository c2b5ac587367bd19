//! The parameters and the states of the bucket's Lua implementation.

use super::Bucket;
use super::rate::Rate;
use crate::algorithm::LuaScript;
use crate::decision::AcquireOptions;

pub(crate) const SCRIPT: LuaScript = LuaScript::new("bucket2", include_str!("bucket.lua"))
    .with_fast_path(concat!(include_str!("bucket_fast.lua"), include_str!("../fast_holds.lua")))
    .with_fast_path_of_several(include_str!("buckets_fast.lua"));

impl Bucket {
    /// Appends the parameters of the Lua implementation: see `bucket.lua`.
    pub(crate) fn params(&self, queued: bool, cost: u64, params: &mut Vec<u64>) {
        let spare = self.burst.checked_sub(cost);
        let tolerance = self.rate.span(spare.unwrap_or(0));
        let charge = self.rate.span(cost);
        let Rate { tokens, ticks, .. } = self.rate;
        // Lua takes a value below zero for `ExceedsLimit`. Parameters are not negative, so the value is sent plus one.
        let spare = spare.map_or(0, |spare| spare + 1);
        params.extend([tokens, ticks, tolerance.ticks, tolerance.fraction, charge.ticks, charge.fraction]);
        params.extend([self.time_to_full, spare, u64::from(queued)]);
    }

    /// Returns whether the fast script accepts these options.
    pub(crate) fn uses_fast_path(&self, options: AcquireOptions) -> bool {
        options.cost > 0 && options.cost <= self.burst && options.max_delay_micros_or(0) == 0
    }

    pub(crate) fn decode_state(numbers: &[u64]) -> [u64; 4] {
        let &[arrival, fraction, tokens, ticks, last_charged_at, ..] = numbers else { return [0; 4] };
        [arrival, fraction, Rate::pack(tokens, ticks), last_charged_at]
    }

    pub(crate) fn encode_state(&[arrival, fraction, rate, last_charged_at]: &[u64; 4], numbers: &mut Vec<u64>) {
        let Rate { tokens, ticks, .. } = Rate::unpack(rate);
        numbers.extend([arrival, fraction, tokens, ticks, last_charged_at]);
    }
}
