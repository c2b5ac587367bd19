//! The layout of a state in bytes.

use std::time::Duration;

use crate::algorithm::{Counters, State};
use crate::clock::Timestamp;
use crate::decision::BlockReason;
use crate::store::inner::{latest_end, micros_floor};

/// The version of the layout: the first byte of each state, and the first part of each key.
pub(super) const VERSION: u8 = 1;

/// The maximum number of hits in the log of a [`SlidingLog`](crate::SlidingLog).
pub(super) const MAX_HITS: usize = 1_000;

/// The version, the checksum, and the end and the duration of the block.
const HEADER_BYTES: usize = 1 + 4 + 16;

/// The maximum length of a state: a log with the maximum number of hits.
pub(super) const MAX_STATE_BYTES: usize = HEADER_BYTES + 8 * (6 + 2 * MAX_HITS);

/// The state of a key under one limit.
pub(super) struct Stored<S> {
    pub(super) state: S,
    pub(super) block: Block,
}

/// The time for which a key is blocked. [`Block::NONE`] ends before any time.
#[derive(Clone, Copy)]
pub(super) struct Block {
    until: u64,
    /// The microseconds from the time at which the block was set to its end, and the [reason](BlockReason::pack).
    duration: u64,
}

impl Block {
    pub(super) const NONE: Self = Self { until: 0, duration: 0 };

    pub(super) fn new(now: Timestamp, until: Timestamp, reason: BlockReason) -> Self {
        let duration = micros_floor(until.saturating_since(now));
        if duration == 0 { Self::NONE } else { Self { until: until.as_micros(), duration: reason.pack(duration) } }
    }

    /// Returns the time until the block ends, and its reason. `None` if it has ended, or does not count, because the clock
    /// has stepped back by more than its duration.
    pub(super) fn remaining(self, now: Timestamp) -> Option<(Duration, BlockReason)> {
        let until = Timestamp::from_micros(self.until);
        let (duration, reason) = BlockReason::unpack(self.duration);
        (until > now && until <= latest_end(now, duration)).then(|| (until.saturating_since(now), reason))
    }
}

impl<S: State> Stored<S> {
    /// Returns the state of a never-seen key.
    pub(super) fn zero() -> Self {
        // As many words as the longest window has. `to_stored` leaves out those that stay zero.
        Self { state: S::from_numbers(&[0; Counters::MAX_WORDS]), block: Block::NONE }
    }

    /// Reads the bytes that [`encode`](Self::encode) has written with the same name of states.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with other bytes.
    pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<Self, &'static str> {
        let Some((&[version, a, b, c, d], body)) = bytes.split_first_chunk() else { return Err("it is too short") };
        if version != VERSION {
            return Err("it is of another version");
        }
        if bytes.len() > MAX_STATE_BYTES {
            return Err("it is too long");
        }
        if u32::from_le_bytes([a, b, c, d]) != checksum(name, body) {
            return Err("its checksum is wrong");
        }
        let (words, []) = body.as_chunks() else { return Err("it is no sequence of words") };
        let numbers: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let Some((&[until, duration], state)) = numbers.split_first_chunk() else { return Err("it is too short") };
        let state = S::from_stored(state).ok_or("its words are of another algorithm")?;
        Ok(Self { state, block: Block { until, duration } })
    }

    /// Returns the bytes, unless the state is too long.
    pub(super) fn encode(&self, name: &str, now: Timestamp) -> Option<Vec<u8>> {
        let Block { until, duration } = if self.block.remaining(now).is_none() { Block::NONE } else { self.block };
        let mut numbers = vec![until, duration];
        self.state.to_stored(&mut numbers);
        let body: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.push(VERSION);
        bytes.extend(checksum(name, &body).to_le_bytes());
        bytes.extend(body);
        (bytes.len() <= MAX_STATE_BYTES).then_some(bytes)
    }

    /// Returns the time from which the key is idle.
    pub(super) fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.state.idle_at().max(self.block.until))
    }
}

/// Returns the 32-bit FNV-1a hash of the name and the bytes. Each step is a bijection, so a change of one byte changes the
/// result.
fn checksum(name: &str, bytes: &[u8]) -> u32 {
    name.as_bytes()
        .iter()
        .chain(bytes)
        .fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
