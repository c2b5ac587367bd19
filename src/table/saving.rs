//! Reads the whole table for a file, beside decisions, and inserts what was read into another table.
//!
//! # Protocol
//!
//! The reader goes through the sets, and validates the version of each: so the state, the held amount and the inherited
//! debt that it reads of a set are of one moment. A key that moves from a set that the reader has not reached to a set
//! that it has passed would be in neither reading. So each relocation notes its key while a table is read, under the
//! locks of both sets, and at the end the reader reads the noted keys again.
//!
//! Reader and relocation change the flag by read-modify-write operations, which have one order. If that of the
//! relocation is first, the reader sees the locks of the relocation, and reads both sets after it. Otherwise the
//! relocation sees the flag. With a plain load, it could miss the flag of a reader that has missed its locks.

use std::ops::Range;
use std::sync::PoisonError;

use super::entry::Location;
use super::eviction::{EvictionPolicy, TableFull};
use super::set::{LockToken, Set, all_slots};
use super::table::Table;
use crate::algorithm::{AtomicState, State};
use crate::sync::{AtomicU64, Backoff, Mutex, MutexGuard, Ordering};

/// The keys that are relocated while a thread reads the table.
pub(super) struct Relocations {
    /// 1 while a thread reads the table, otherwise 0.
    readers: AtomicU64,
    keys: Mutex<Vec<u64>>,
    /// Readings run one after another.
    one_reader: Mutex<()>,
}

impl Relocations {
    pub(super) fn new() -> Self {
        Self { readers: AtomicU64::new(0), keys: Mutex::new(Vec::new()), one_reader: Mutex::new(()) }
    }

    /// Notes a key that has moved between two locked sets, if a thread reads the table.
    pub(super) fn note(&self, fingerprint: u64, _: &LockToken) {
        // Not a load, which could miss the flag: see "Protocol".
        if self.readers.fetch_add(0, Ordering::AcqRel) > 0 {
            self.keys().push(fingerprint);
        }
    }

    fn start(&self) -> TableReading<'_> {
        let one = self.one_reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.readers.fetch_add(1, Ordering::AcqRel);
        TableReading { relocations: self, _one: one }
    }

    fn keys(&self) -> MutexGuard<'_, Vec<u64>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes relocations until it is dropped, also if the reader fails.
struct TableReading<'a> {
    relocations: &'a Relocations,
    _one: MutexGuard<'a, ()>,
}

impl TableReading<'_> {
    fn take_relocated(&self) -> Vec<u64> {
        std::mem::take(&mut *self.relocations.keys())
    }
}

impl Drop for TableReading<'_> {
    fn drop(&mut self) {
        self.relocations.readers.fetch_sub(1, Ordering::AcqRel);
        // A relocation that saw the flag before may still note its key. The next reading then passes this key twice.
        drop(self.take_relocated());
    }
}

/// What the reading of a table finds. The words are those of [`State::to_stored`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum SavedItem<'a> {
    /// A key that is not idle, or has a held amount.
    Key { fingerprint: u64, held: u64, words: &'a [u64] },
    /// A debt that new keys of a set inherit.
    Debt { set: usize, words: &'a [u64] },
}

/// A reading of one set, or of one key. Used again for each set, so that it allocates only once.
#[derive(Default)]
struct SetReading {
    words: Vec<u64>,
    /// Fingerprint, held amount, words.
    keys: Vec<(u64, u64, Range<usize>)>,
    debt: Option<Range<usize>>,
}

impl SetReading {
    fn clear(&mut self) {
        self.words.clear();
        self.keys.clear();
        self.debt = None;
    }

    fn add(&mut self, state: &impl State) -> Range<usize> {
        let start = self.words.len();
        state.to_stored(&mut self.words);
        start..self.words.len()
    }

    fn items(&self, set: usize) -> impl Iterator<Item = SavedItem<'_>> {
        let words = |range: &Range<usize>| self.words.get(range.clone()).unwrap_or_default();
        let keys = self.keys.iter();
        let keys = keys.map(move |(fingerprint, held, range)| SavedItem::Key {
            fingerprint: *fingerprint,
            held: *held,
            words: words(range),
        });
        keys.chain(self.debt.iter().map(move |range| SavedItem::Debt { set, words: words(range) }))
    }
}

impl<C: AtomicState> Table<C> {
    /// Runs `f` on every key that is not idle at `now` or has a held amount, and on the inherited debts. Decisions go on
    /// meanwhile. A key may be passed more than once: the last time counts.
    ///
    /// Each item is of one moment after the call. All charges from before the call are contained.
    ///
    /// # Errors
    ///
    /// Returns the first error of `f`.
    pub(crate) fn read_all<E>(&self, now: u64, mut f: impl FnMut(SavedItem<'_>) -> Result<(), E>) -> Result<(), E> {
        let reading = self.relocations.start();
        let mut found = SetReading::default();
        for (index, set) in self.sets.iter().enumerate() {
            self.read_set(index, set, now, &mut found);
            found.items(index).try_for_each(&mut f)?;
        }
        // A key that moves from here on was read where it was.
        for fingerprint in reading.take_relocated() {
            self.read_key(fingerprint, now, &mut found);
            found.items(0).try_for_each(&mut f)?;
        }
        Ok(())
    }

    fn read_set(&self, index: usize, set: &Set<C>, now: u64, found: &mut SetReading) {
        let mut backoff = Backoff::new();
        loop {
            found.clear();
            let version = set.version();
            for slot in all_slots() {
                let fingerprint = set.fingerprint(slot);
                let held = self.holds.of(fingerprint);
                if fingerprint != 0 && (held > 0 || set.cell(slot).idle_at() > now) {
                    let words = found.add(&*set.cell(slot).snapshot());
                    found.keys.push((fingerprint, held, words));
                }
            }
            if let Some(debt) = self.eviction.inherited_debts.get(index)
                && debt.idle_at() > now
            {
                found.debt = Some(found.add(&*debt.snapshot()));
            }
            if set.validate(version) {
                return;
            }
            backoff.wait();
        }
    }

    fn read_key(&self, fingerprint: u64, now: u64, found: &mut SetReading) {
        found.clear();
        let (mut location, mut state) = (Location::EMPTY, C::empty());
        let held = self.read(fingerprint, &mut location, &mut state).held;
        if !location.is_absent() && (held > 0 || state.idle_at() > now) {
            let words = found.add(&*state);
            found.keys.push((fingerprint, held, words));
        }
    }

    /// Returns the zero state, with the table's number of words.
    pub(crate) fn zero_state(&self) -> C::State {
        let mut zero = C::empty();
        if let Some(set) = self.sets.first() {
            set.cell(0).read_zero(&mut zero);
        }
        zero.clone()
    }

    /// Returns the number of sets, to which inherited debts belong.
    pub(crate) fn set_count(&self) -> usize {
        self.sets.len()
    }

    /// Sets the state of a key that another table has saved.
    ///
    /// # Errors
    ///
    /// Returns an error if the table is full.
    pub(crate) fn insert(
        &self,
        fingerprint: u64,
        state: &C::State,
        now: u64,
        policy: &impl EvictionPolicy<C::State>,
    ) -> Result<(), TableFull> {
        self.update(fingerprint, now, Some(policy), |table, slot, _, token| table.edit(slot, token).clone_from(state))
    }

    /// Lets new keys of a set, or of all sets, inherit at least this debt. A table that carries no debt ignores it.
    pub(crate) fn inherit_debt(&self, set: Option<usize>, debt: &C::State, policy: &impl EvictionPolicy<C::State>) {
        let all = 0..self.eviction.inherited_debts.len();
        // A damaged file can name a set that does not exist: its range is empty.
        let sets = set.map_or(all.clone(), |set| set..set.saturating_add(1).min(all.end));
        for set in sets {
            let (Some(locked), Some(cell)) = (self.sets.get(set), self.eviction.inherited_debts.get(set)) else {
                continue;
            };
            let (version, token) = locked.lock();
            policy.carry_over(&mut cell.edit(), debt);
            locked.unlock(version, &token);
        }
    }

    /// Makes keys that are absent from a restored table be decided no earlier than at `time`: a key that was idle then
    /// was not saved.
    pub(crate) fn raise_horizons(&self, time: u64) {
        (0..self.sets.len()).for_each(|set| self.horizons.raise(set, time));
    }

    /// Locks all that keys of several sets share, for a test that decisions do not lock any of it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lock_shared(&self) -> impl Sized + '_ {
        (self.holds.lock_all(), self.relocations.keys(), self.relocations.one_reader.lock())
    }

    /// Removes all keys and debts of a table that no other thread uses yet.
    pub(crate) fn clear_all(&self) {
        for (index, set) in self.sets.iter().enumerate() {
            let (version, token) = set.lock();
            all_slots().for_each(|slot| set.clear_slot(slot, &token));
            if let Some(debt) = self.eviction.inherited_debts.get(index) {
                debt.clear();
            }
            set.unlock(version, &token);
        }
    }
}
