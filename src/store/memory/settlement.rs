//! The end of a hold, by its guard or its id.

use super::acquire::table_full;
use super::limiter::Shared;
use super::limits::MemoryLimits;
use super::table::TableFull;
use super::transaction_limit::read_clock;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::inner::{HeldCharge, HeldEntry, HoldStore};

/// The time of a settlement in a store, by the store's address.
type SettledAt = Option<(usize, Timestamp)>;

impl<Key, L> HoldStore for Shared<Key, L>
where
    Key: ?Sized,
    L: MemoryLimits<Key>,
{
    /// Ends the hold of a guard, after the holds with an id that have expired before.
    fn end(&self, entry: &HeldEntry, charge: HeldCharge<'_>, settled_at: &mut SettledAt) -> Result<(), Error> {
        self.end_due();
        self.settle_entry(entry, entry.charged(charge), settled_at).map_err(table_full)
    }
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Shared<Key, L> {
    /// Ends a hold on each limit that shares a table with the limits of the hold, as their replacements do.
    pub(super) fn settle_limits(&self, entries: &[HeldEntry], charge: HeldCharge<'_>) -> Result<(), Error> {
        let (mut settled, mut settled_at, mut open) = (Ok(()), None, OpenEntries { shared: self, entries });
        while let [entry, others @ ..] = open.entries {
            open.entries = others;
            settled = settled.and(self.settle_entry(entry, entry.charged(charge), &mut settled_at));
        }
        settled.map_err(table_full)
    }

    fn settle_entry(&self, entry: &HeldEntry, actual: u64, settled_at: &mut SettledAt) -> Result<(), TableFull> {
        let mut settled = Ok(());
        // One time for all limits, unless another thread has decided later: otherwise a share could forget the charge before the
        // limit of all does, and allow what that one denies. A request in flight ends without a time.
        let store = std::ptr::from_ref(self).addr();
        let mut now = match *settled_at {
            _ if entry.is_until_end() => Timestamp::EPOCH,
            Some((id, at)) if id == store => at,
            _ => read_clock(&self.clock),
        };
        L::for_each(&self.tables, &mut |table| {
            let table = table.info();
            if table.table_id() == entry.table {
                settled = settled.and(table.settle(entry, actual, &mut now, &self.clock));
            }
        });
        if !entry.is_until_end() {
            *settled_at = Some((store, now));
        }
        settled
    }
}

/// What is still held while a hold is settled. If an algorithm panics, the drop releases it, without a call of an algorithm.
struct OpenEntries<'a, Key: ?Sized, L: MemoryLimits<Key>> {
    shared: &'a Shared<Key, L>,
    entries: &'a [HeldEntry],
}

impl<Key: ?Sized, L: MemoryLimits<Key>> Drop for OpenEntries<'_, Key, L> {
    fn drop(&mut self) {
        for entry in self.entries {
            let _ = self.shared.settle_entry(entry, 0, &mut None);
        }
    }
}
