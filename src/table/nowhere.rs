use super::{Spot, Table, Unlock};
use crate::algorithm::AtomicState;

/// A key that was in neither of its sets, and is as good as new.
pub(crate) struct Nowhere<'a, C: AtomicState> {
    table: &'a Table<C>,
    now: u64,
    pub(crate) spot: Spot,
}

/// Why a key was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotInserted {
    /// Something has changed since the reading.
    Late,
    NoRoom,
}

impl<C: AtomicState> Table<C> {
    /// A consistent reading of a key that is nowhere. `None` if it is somewhere, or must be decided later than `now`.
    #[inline(always)]
    pub(crate) fn read_nowhere(&self, hash: u64, now: u64) -> Option<Nowhere<'_, C>> {
        let mut spot = Spot::BLANK;
        let horizon = self.read(hash, &mut spot).horizon;
        (spot.is_nowhere() && horizon <= now).then_some(Nowhere { table: self, now, spot })
    }
}

impl<C: AtomicState> Nowhere<'_, C> {
    /// Stores a state for it, in a table without estates.
    #[inline(always)]
    pub(crate) fn insert(&self, state: &C::State) -> Result<(), NotInserted> {
        let Self { table, now, spot } = self;
        debug_assert!(!table.has_estates(), "what is inherited is left out");
        if !table.lock(spot) {
            return Err(NotInserted::Late);
        }
        let unlock = Unlock { table, spot };
        let place = table.take_slot(spot, *now).ok_or(NotInserted::NoRoom)?;
        table.edit(place).clone_from(state);
        drop(unlock);
        Ok(())
    }
}
