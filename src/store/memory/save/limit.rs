//! One limit in a file.

use std::io;
use std::time::Duration;

use super::file::{FileWriter, LimitRecords, Record, SavedCounts};
use super::type_name::{is_of_process, short_type_name};
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::limit::AlgorithmSelector;
use crate::store::inner::AlgorithmExt as _;
use crate::store::memory::limit_table::{LimitTable, StateOf};
use crate::store::memory::table::{Block, SavedItem, SavedKind};

/// The names of a limit, its algorithm and its sub-key.
pub(super) type LimitNames = [String; 3];

/// What identifies a limit in a file.
#[derive(Debug)]
pub struct SavedNames {
    pub(super) names: LimitNames,
    /// The keys have no meaning for another process.
    pub(super) is_of_process: bool,
}

/// A limit of a file, and the file.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct SavedLimit<'a> {
    pub(super) counts: &'a SavedCounts,
    pub(super) limit: &'a LimitRecords,
}

impl SavedLimit<'_> {
    fn records(&self) -> impl Iterator<Item = Record> {
        self.counts.records(self.limit)
    }

    fn invalid(&self) -> Error {
        self.failed("a state of the file is not one of the algorithm; start empty (`restore_or_empty`)")
    }

    fn failed(&self, cause: &str) -> Error {
        Error::config(format!("restoring the saved counts failed: limit {:?}: {cause}", self.limit.names[0]))
    }
}

impl<C: AlgorithmSelector> LimitTable<C> {
    /// Returns what identifies the limit in a file.
    pub(in crate::store::memory) fn names_in_file<SubKey: ?Sized>(&self) -> SavedNames {
        let sub_key = short_type_name::<SubKey>() + self.limit.sub_key_name().unwrap_or_default();
        let names = [self.limit.name().to_owned(), short_type_name::<C::Algorithm>(), sub_key];
        SavedNames { names, is_of_process: is_of_process::<SubKey>() }
    }

    /// Writes the states and blocks at `now`, and the charges that other threads make meanwhile.
    pub(in crate::store::memory) fn save_as(
        &self,
        names: &SavedNames,
        now: Timestamp,
        file: &mut FileWriter<'_>,
    ) -> io::Result<()> {
        file.limit(names, self.table.set_count())?;
        let mut charged = Vec::new();
        self.table.read_all(now.as_micros(), |SavedItem { kind, id, held, words }| {
            // The state of a request in flight ends with the process.
            if C::Algorithm::HELD_UNTIL_END && kind != SavedKind::Block {
                return Ok(());
            }
            if held == 0 {
                return file.record(kind, id, words);
            }
            self.charge_held(id, held, words, now, &mut charged);
            file.record(kind, id, &charged)
        })?;
        file.end_limit();
        Ok(())
    }

    /// Writes the words of a state after a charge of what is held on its key.
    fn charge_held(&self, fingerprint: u64, held: u64, words: &[u64], now: Timestamp, charged: &mut Vec<u64>) {
        charged.clear();
        let mut charge = |algorithm: &C::Algorithm| {
            let mut state = StateOf::<C>::from_stored(words)?;
            state.fit(self.table.info().words);
            algorithm.charge(&mut state, now, Duration::ZERO, held);
            state.to_stored(charged);
            Some(())
        };
        let done = match self.limit.algorithm().fixed() {
            Some(algorithm) => charge(algorithm),
            None => self.table.lock(fingerprint).held_algorithm(fingerprint).and_then(charge),
        };
        // The hold has ended since the reading, which charged less than it held.
        if done.is_none() {
            charged.extend(words);
        }
    }

    /// Inserts the states and the blocks of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if a state is not one of the algorithm, or does not fit, or finds no slot.
    pub(in crate::store::memory) fn restore_from(&self, saved: SavedLimit<'_>, now: Timestamp) -> Result<(), Error> {
        let policy = self.eviction(self.limit.algorithm().fixed(), now);
        let mut all_debts = self.table.info().zero.clone();
        let same_sets = saved.limit.sets == self.table.set_count();
        let mut idle_before = saved.counts.time.as_micros();
        for Record { kind, id, words } in saved.records() {
            if kind == SavedKind::Block {
                let &[until, duration] = &words[..] else { return Err(saved.invalid()) };
                if Timestamp::from_micros(until) > now {
                    let block = Block { until, duration };
                    self.table.lock(id).set_block(id, Some(block), now, self.table.info());
                }
                continue;
            }
            let Some(state) = self.restore_state(&words, now, &mut idle_before, saved)? else { continue };
            if kind == SavedKind::Key {
                let mut keys = self.table.lock(id);
                let slot = keys.insert(id, &policy).map_err(|_| {
                    saved.failed(
                        "the table has no slot for each saved key, and eviction is disabled (`WhenFull::Deny`); raise \
                         `max_keys`",
                    )
                })?;
                *keys.state_mut(slot) = state;
            } else if same_sets {
                let set = usize::try_from(id).map_err(|_| saved.invalid())?;
                self.table.inherit_debt(Some(set), &state, &policy);
            } else {
                policy.carry_over(&mut all_debts, &state);
            }
        }
        if all_debts.idle_at() > 0 {
            // In a table of another size an evicted key can have any two sets.
            self.table.inherit_debt(None, &all_debts, &policy);
        }
        // The file leaves out keys that were idle when it was written: if the clock steps back behind that time, they
        // must not decide as if they had never been charged.
        self.table.locked_shards().for_each(|mut keys| keys.raise_horizon(idle_before));
        Ok(())
    }

    /// Returns the state of a record with this table's number of words, or `None` if it is idle. Then `idle_before` is no
    /// earlier than the time since which it is.
    fn restore_state(
        &self,
        words: &[u64],
        now: Timestamp,
        idle_before: &mut u64,
        saved: SavedLimit<'_>,
    ) -> Result<Option<StateOf<C>>, Error> {
        let mut state = StateOf::<C>::from_stored(words).ok_or_else(|| saved.invalid())?;
        if state.idle_at() <= now.as_micros() {
            *idle_before = state.idle_at().max(*idle_before);
            return Ok(None);
        }
        if state.fit(self.table.info().words) {
            return Ok(Some(state));
        }
        // A window with more blocks has written the state: the algorithm counts its usage in its own blocks.
        let algorithm = self.limit.algorithm().fixed().ok_or_else(|| saved.invalid())?;
        let mut converted = self.table.info().zero.clone();
        algorithm.carry_over_debt(&mut converted, &state, now);
        // Nothing is left if the usage is older than the window.
        Ok((converted.idle_at() > now.as_micros()).then_some(converted))
    }
}
