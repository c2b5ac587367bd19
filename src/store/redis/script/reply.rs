use redis::Value;

use super::fields::Failure;
use super::replay::{DynLuaAlgorithm, replay_panicked};
use super::template::MAX_EXACT;
use crate::clock::Timestamp;
use crate::error::Error;

/// The state of one key, replayed from operation to operation of a batch.
pub(crate) struct ReplayedState {
    pub(crate) held: u64,
    /// `None` after an algorithm panicked on the state.
    numbers: Option<Vec<u64>>,
}

impl ReplayedState {
    /// Runs `replay` on the state's numbers.
    ///
    /// The numbers are taken out during the call and put back after it. A panic in between leaves `None`, so later
    /// operations on the key return an error, not numbers of a state that is half changed.
    pub(crate) fn replay<T>(&mut self, replay: impl FnOnce(&mut Vec<u64>) -> T) -> Result<T, Error> {
        let mut numbers = self.numbers.take().ok_or_else(replay_panicked)?;
        let result = replay(&mut numbers);
        self.numbers = Some(numbers);
        Ok(result)
    }

    /// Replays a charge, and ignores a panic: the settlement itself has succeeded.
    pub(crate) fn replay_charge(&mut self, algorithm: &dyn DynLuaAlgorithm, now: Timestamp, cost: u64) {
        let _ = super::catch_panic(|| self.replay(|numbers| algorithm.replay_charge(numbers, now, cost)));
    }
}

/// Reads the values of a reply one after the other: `driver.lua` documents the format.
pub(crate) struct ReplyReader<'a> {
    pub(super) used_fast_path: bool,
    /// After the fast path, results that are all 0 do not travel.
    has_results: bool,
    /// The number of holds that the script found expired.
    pub(crate) expired: usize,
    values: std::slice::ChunksExact<'a, u8>,
}

impl<'a> ReplyReader<'a> {
    /// In place of a value that is not a number: a key held foreign bytes that looked like a state.
    pub(super) const NOT_A_NUMBER: i64 = i64::MIN;

    /// Returns the server's time, a reader of the values, and the state of each key before the batch.
    pub(crate) fn new(value: &'a Value, keys: usize) -> Option<(Timestamp, Self, Vec<ReplayedState>)> {
        let Value::BulkString(bytes) = value else { return None };
        let (header, rest) = bytes.split_at_checked(14)?;
        let now = Self::read_time(*header.first_chunk()?)?;
        let flags = read_u16(header.get(8..10)?)?;
        let length = read_u16(header.get(10..12)?)?;
        if read_u16(header.get(12..14)?)? != keys {
            return None;
        }
        let used_fast_path = flags == 1;
        let (values, rest) = rest.split_at_checked(length * 8)?;
        let (lengths, mut packed_states) = rest.split_at_checked(if used_fast_path { 0 } else { keys * 2 })?;
        let mut lengths = lengths.chunks_exact(2);
        let equal_length = packed_states.len() / keys.max(1);
        let mut states = Vec::with_capacity(keys);
        for _ in 0..keys {
            let length = if used_fast_path { equal_length } else { read_u16(lengths.next()?)? };
            let (packed, others) = packed_states.split_at_checked(length)?;
            packed_states = others;
            let mut packed_numbers = packed.chunks_exact(8).map(|number| read_f64(number).and_then(to_unsigned));
            // One extra byte marks a key with held costs: their sum comes first.
            let held = if length % 8 == 1 { packed_numbers.next()?? } else { 0 };
            // `collect` would not know the length.
            let mut numbers = Vec::with_capacity(packed_numbers.len());
            for number in packed_numbers {
                numbers.push(number?);
            }
            states.push(ReplayedState { held, numbers: Some(numbers) });
        }
        let (expired, values) = (flags / 2, values.chunks_exact(8));
        let reader = Self { used_fast_path, has_results: !used_fast_path || length > 0, expired, values };
        Some((Timestamp::from_micros(now), reader, states))
    }

    /// Reads a time, which is at most 2^53.
    pub(crate) fn read_time(bytes: [u8; 8]) -> Option<u64> {
        // A later time is none of a server: with this bound no sum or difference of times overflows.
        read_f64(&bytes).and_then(to_unsigned).filter(|now| *now <= MAX_EXACT)
    }

    /// Whether a value is in place of a number because a key holds foreign bytes.
    pub(crate) fn is_invalid_state(value: i64) -> bool {
        value == Self::NOT_A_NUMBER || Failure::of(value) == Some(Failure::InvalidState)
    }

    /// Returns the next value, or `None` at the end. A value that is not a number fails only its own operation.
    pub(crate) fn next_i64(&mut self) -> Option<i64> {
        if !self.has_results {
            return Some(0);
        }
        Some(read_f64(self.values.next()?).unwrap_or(Self::NOT_A_NUMBER))
    }

    /// Returns the next values, in the order of a list in `fields`.
    pub(crate) fn next_array<const N: usize>(&mut self) -> Option<[i64; N]> {
        let mut values = [0; N];
        for value in &mut values {
            *value = self.next_i64()?;
        }
        Some(values)
    }
}

fn read_u16(bytes: &[u8]) -> Option<usize> {
    bytes.try_into().ok().map(u16::from_le_bytes).map(usize::from)
}

#[allow(clippy::cast_possible_truncation, reason = "whole numbers of at most 2^53")]
fn read_f64(bytes: &[u8]) -> Option<i64> {
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    number.is_finite().then_some(number as i64)
}

pub(super) fn to_unsigned(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}
