//! The end of a hold, by its guard or its id.

use super::acquire::table_full;
use super::limiter::Shared;
use super::limits::MemoryLimits;
use super::table::TableFull;
use crate::error::Error;
use crate::store::inner::{HeldCharge, HeldEntry, HoldStore};

impl<Key, L, S> HoldStore for Shared<Key, L, S>
where
    Key: ?Sized,
    L: MemoryLimits<Key, S>,
    S: Send + Sync,
{
    /// Ends the hold of a guard, after the holds with an id that have expired before.
    fn end(&self, entry: &HeldEntry, charge: &HeldCharge) -> Result<(), Error> {
        self.end_due();
        self.settle_entry(entry, entry.charged(charge)).map_err(table_full)
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key, S>, S> Shared<Key, L, S> {
    /// Ends a hold on each limit that shares a table with the limits of the hold, as their replacements do.
    pub(super) fn settle_limits(&self, entries: &[HeldEntry], charge: &HeldCharge) -> Result<(), Error> {
        let (mut settled, mut open) = (Ok(()), OpenEntries { shared: self, entries });
        while let [entry, others @ ..] = open.entries {
            open.entries = others;
            settled = settled.and(self.settle_entry(entry, entry.charged(charge)));
        }
        settled.map_err(table_full)
    }

    fn settle_entry(&self, entry: &HeldEntry, actual: u64) -> Result<(), TableFull> {
        let mut settled = Ok(());
        L::for_each(&self.tables, &mut |table| {
            if table.table_id() == entry.table {
                settled = settled.and(table.settle(entry, actual, &self.clock));
            }
        });
        settled
    }
}

/// What is still held while a hold is settled. If an algorithm panics, the drop releases it, without a call of an algorithm.
struct OpenEntries<'a, Key: ?Sized, L: MemoryLimits<Key, S>, S> {
    shared: &'a Shared<Key, L, S>,
    entries: &'a [HeldEntry],
}

impl<Key: ?Sized, L: MemoryLimits<Key, S>, S> Drop for OpenEntries<'_, Key, L, S> {
    fn drop(&mut self) {
        for entry in self.entries {
            let _ = self.shared.settle_entry(entry, 0);
        }
    }
}
