//! What the bucket's twin in Lua is told, and what it tells.

use super::Bucket;
use super::rate::Rate;
use crate::algorithm::LuaScript;
use crate::decision::AcquireOptions;

pub(crate) const SCRIPT: LuaScript =
    LuaScript::new("bucket2", include_str!("bucket.lua")).with_fast_path(include_str!("bucket_fast.lua"));

impl Bucket {
    /// The parameters of the twin in Lua: see `bucket.lua`.
    pub(crate) fn params(&self, in_turn: bool, cost: u64, params: &mut Vec<u64>) {
        let spare = self.burst.checked_sub(cost);
        let slack = self.rate.span(spare.unwrap_or(0));
        let charge = self.rate.span(cost);
        let Rate { tokens, ticks, .. } = self.rate;
        // Below zero is what Lua takes for never; there are no negative parameters, so the spare is one more.
        let spare = spare.map_or(0, |spare| spare + 1);
        params.extend([tokens, ticks, slack.whole, slack.part, charge.whole, charge.part]);
        params.extend([self.time_to_full, spare, u64::from(in_turn)]);
    }

    /// Whether `bucket_short.lua` takes it.
    pub(crate) fn uses_fast_path(&self, ask: AcquireOptions) -> bool {
        ask.cost > 0 && ask.cost <= self.burst && ask.max_delay_micros_or(0) == 0
    }

    pub(crate) fn decode_state(numbers: &[u64]) -> [u64; 4] {
        let &[whole, part, tokens, ticks, written_at, ..] = numbers else { return [0; 4] };
        let rate = if tokens == 0 { 0 } else { Rate::pack(tokens, ticks) };
        [whole, part, rate, written_at]
    }

    pub(crate) fn encode_state(&[whole, part, rate, written_at]: &[u64; 4], numbers: &mut Vec<u64>) {
        let Rate { tokens, ticks, .. } = Rate::unpack(rate);
        numbers.extend([whole, part, tokens, ticks, written_at]);
    }
}
