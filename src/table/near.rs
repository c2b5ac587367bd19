use super::set::Set;
use super::{Table, fingerprint, scale};
use crate::algorithm::AtomicState;

/// Why there is no reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as the words that decisions are made of: in a result of either, a byte of it would have the words in pieces.
#[repr(u64)]
#[allow(unreachable_pub, reason = "named by a hidden method only")]
pub enum Missed {
    /// Somebody is at work there: it is worth another try.
    Busy,
    /// The key seems to be in neither set, of which only both versions together could tell. Or costs are held on some key of
    /// the table.
    Absent,
}

/// A key where it was found.
pub(crate) struct Near<'a, C: AtomicState> {
    set: &'a Set<C>,
    version: u64,
    slot: u8,
    pub(crate) state: C::Snapshot<'a>,
}

impl<'a, C: AtomicState> Near<'a, C> {
    #[inline(always)]
    fn read(set: &'a Set<C>, version: u64, slot: u8) -> Result<Self, Missed> {
        let state = set.cell(slot).snapshot();
        if set.is_at(version) { Ok(Self { set, version, slot, state }) } else { Err(Missed::Busy) }
    }

    /// Stores another state, unless anything in the set has changed since the reading.
    #[inline(always)]
    pub(crate) fn replace(self, state: C::State) -> Result<(), Missed> {
        **self.lock()?.edit() = state;
        Ok(())
    }

    /// The moment from which on the state is as good as new.
    #[inline(always)]
    pub(crate) fn idle_at(&self) -> u64 {
        self.set.cell(self.slot).idle_at()
    }

    /// Takes the lock, unless anything in the set has changed since the reading.
    #[inline(always)]
    pub(crate) fn lock(self) -> Result<LockedNear<'a, C>, Missed> {
        let Self { set, version, slot, state } = self;
        if set.lock(version) {
            Ok(LockedNear { edit: Some(set.cell(slot).edit_from(state)), set, version, slot })
        } else {
            Err(Missed::Busy)
        }
    }
}

/// A key where it was found, under the lock, which is given back when this is dropped.
pub(crate) struct LockedNear<'a, C: AtomicState> {
    edit: Option<C::Edit<'a>>,
    set: &'a Set<C>,
    version: u64,
    slot: u8,
}

impl<'a, C: AtomicState> LockedNear<'a, C> {
    /// The state to change.
    #[inline(always)]
    pub(crate) fn edit(&mut self) -> &mut C::Edit<'a> {
        self.edit.get_or_insert_with(|| self.set.cell(self.slot).edit())
    }
}

impl<C: AtomicState> Drop for LockedNear<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        self.edit = None;
        self.set.unlock(self.version);
    }
}

impl<C: AtomicState> Table<C> {
    /// A consistent reading of the key's state, if it is there.
    #[inline(always)]
    pub(crate) fn read_near(&self, hash: u64) -> Result<Near<'_, C>, Missed> {
        let fingerprint = fingerprint(hash);
        let home = &self.sets[scale(fingerprint, self.sets.len())];
        let version = home.version();
        // After the version: see the protocol of `holds`.
        if self.holds.any() {
            return Err(Missed::Absent);
        }
        if let Some(slot) = home.find(fingerprint) {
            return Near::read(home, version, slot);
        }
        let other = &self.sets[self.candidates(fingerprint)[1]];
        let version = other.version();
        if self.holds.any() {
            return Err(Missed::Absent);
        }
        match other.find(fingerprint) {
            Some(slot) => Near::read(other, version, slot),
            None => Err(Missed::Absent),
        }
    }
}
