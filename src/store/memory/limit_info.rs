//! The operations on a limit that need no key.

use std::any::Any;
use std::io;
use std::time::Duration;

use super::limit_table::{CellOf, LimitTable, clamp_to_horizon, is_ahead_of_clock};
use super::save::{FileWriter, SavedLimit, SavedNames};
use super::transaction_limit::{HeldLimit, LimitInfo, read_clock};
use super::usage::{KeyId, TopKey, Usage};
use crate::algorithm::Algorithm;
use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::limit::AlgorithmSelector;
use crate::store::inner::{
    Name,
    table::{LockToken, SlotIndex, Table, TableFull},
};

impl<C: AlgorithmSelector, P: Send + Sync + 'static> LimitInfo for LimitTable<C, P> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn table_id(&self) -> u64 {
        self.table.id()
    }

    fn name(&self) -> &Name {
        self.limit.name_handle()
    }

    fn unit(&self) -> Option<&'static str> {
        self.limit.cost().unit()
    }

    fn is_held_until_end(&self) -> bool {
        C::Algorithm::HELD_UNTIL_END
    }

    fn is_share(&self) -> bool {
        self.limit.share_count().is_some()
    }

    fn settle(&self, limit: &HeldLimit, actual: u64, clock: &dyn Clock) -> Result<(), TableFull> {
        if limit.until_end {
            self.end_hold(limit.hash, read_clock(clock), |token| {
                let remove = |deadline| self.deadlines.remove(limit.hash, deadline, token);
                if limit.deadline.is_none_or(remove) { limit.held } else { 0 }
            });
            return Ok(());
        }
        let own = limit.algorithm.as_ref().and_then(|own| own.downcast_ref::<C::Algorithm>());
        let now = read_clock(clock);
        let Some(algorithm) = own.or_else(|| self.limit.algorithm().fixed()) else { return Ok(()) };
        let end = |table: &Table<CellOf<C>>, slot: SlotIndex, horizon: u64, token: &LockToken| {
            table.end_hold(slot, limit.held, token);
            if limit.algorithm.is_some() && table.held(limit.hash, token) == 0 {
                self.held_algorithms.remove(limit.hash, token);
            }
            if actual > 0 {
                let idle_at = table.idle_at(slot).max(horizon);
                // A state that was charged after the expiry is charged now.
                let expired_at = limit.expired_at.filter(|at| !is_ahead_of_clock(idle_at, *at, algorithm));
                let now = expired_at.unwrap_or_else(|| effective_now(idle_at, now, clock, algorithm));
                let now = clamp_to_horizon(Timestamp::from_micros(horizon), now, algorithm);
                algorithm.charge(&mut table.edit(slot, token), now, Duration::ZERO, actual);
            }
        };
        // Only a charge needs a slot, if the key has none.
        let eviction = (actual > 0).then(|| self.eviction_policy(algorithm, now));
        let settled = self.table.update(limit.hash, now.as_micros(), eviction.as_ref(), end);
        // A shadow for whose key there is no slot counts nothing.
        if self.limit.is_shadow() { Ok(()) } else { settled }
    }

    fn usage(&self, clock: &dyn Clock) -> Usage {
        let now = read_clock(clock);
        self.end_due_holds_of_others(now, clock, usize::MAX);
        let (held_keys, held) = self.table.holds();
        Usage {
            limit: self.limit.name().to_owned(),
            live_keys: self.table.count_live(now.as_micros()),
            capacity: self.table.capacity(),
            bytes: self.table.bytes() + self.blocks.bytes() + self.deadlines.bytes() + self.held_algorithms.bytes(),
            evicted: self.table.evicted(),
            held_keys,
            held,
        }
    }

    fn top_keys(&self, max: usize, now: Timestamp) -> Vec<TopKey> {
        let algorithm = self.limit.algorithm().fixed();
        let mut keys = Vec::new();
        self.table.for_each_live(now.as_micros(), |id, idle_at, state| {
            let figures = algorithm.map(|algorithm| algorithm.snapshot(state, now).compute());
            let reset = Timestamp::from_micros(idle_at).saturating_since(now);
            keys.push(TopKey { id: KeyId::new(id), reset, figures });
        });
        heaviest(keys, max)
    }

    fn save(&self, names: &SavedNames, now: Timestamp, file: &mut FileWriter<'_>) -> io::Result<()> {
        self.save_as(names, now, file)
    }

    fn restore_keys(&self, saved: SavedLimit<'_>, now: Timestamp) -> Result<(), Error> {
        self.restore_keys(saved, now)
    }

    fn restore_blocks(&self, saved: SavedLimit<'_>, now: Timestamp) {
        self.restore_blocks(saved, now);
    }

    fn clear(&self) {
        self.table.clear_all();
    }
}

/// Returns the first keys by weight. Apart from the method, so that the compiler generates the sorting only once.
fn heaviest(mut keys: Vec<TopKey>, max: usize) -> Vec<TopKey> {
    keys.sort_by(|a, b| b.weight().partial_cmp(&a.weight()).unwrap_or(std::cmp::Ordering::Equal));
    keys.truncate(max);
    keys
}

/// Returns the time that was read before the lock, unless that is so long ago that the state seems to be from
/// a clock that was ahead.
fn effective_now(idle_at: u64, before: Timestamp, clock: &dyn Clock, algorithm: &impl Algorithm) -> Timestamp {
    if !is_ahead_of_clock(idle_at, before, algorithm) {
        return before;
    }
    // No thread has charged the key later than this time.
    let now = read_clock(clock);
    if now.saturating_since(before) > algorithm.max_reset() { now } else { before }
}
