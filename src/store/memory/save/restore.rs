use super::file::SavedCounts;
use super::limit::{SavedLimit, SavedNames};
use super::seed::adopt;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::memory::hasher::KeyHasher;
use crate::store::memory::limits::MemoryLimits;

/// What a builder restores, and what it does with an error.
pub(in crate::store::memory) struct Restore {
    pub(in crate::store::memory) counts: Result<SavedCounts, Error>,
    /// `None` fails with the error.
    pub(in crate::store::memory) or_empty: Option<Box<OnError>>,
}

/// Receives the error if a limiter starts empty.
pub(in crate::store::memory) type OnError = dyn FnOnce(&Error) + Send + Sync;

impl Restore {
    /// Fills the tables of a new limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the counts cannot be restored, unless the limiter is to start empty then.
    pub(in crate::store::memory) fn fill<Key: ?Sized, L>(
        self,
        tables: &L::Tables,
        hasher: &mut KeyHasher,
        now: Timestamp,
    ) -> Result<(), Error>
    where
        L: MemoryLimits<Key>,
    {
        let filled = self.counts.and_then(|counts| fill::<Key, L>(&counts, tables, hasher, now));
        match (filled, self.or_empty) {
            (Err(error), Some(or_empty)) => {
                L::for_each(tables, &mut |limit| limit.info().clear());
                or_empty(&error);
                Ok(())
            }
            (filled, _) => filled,
        }
    }
}

fn fill<Key: ?Sized, L>(
    counts: &SavedCounts,
    tables: &L::Tables,
    hasher: &mut KeyHasher,
    now: Timestamp,
) -> Result<(), Error>
where
    L: MemoryLimits<Key>,
{
    // First: the fingerprints of the file are hashes with this seed.
    adopt(hasher, &counts.seed)?;
    let mut filled = Ok(());
    L::for_each(tables, &mut |table| {
        if let Some(saved) = counts.find(&table.saved_names())
            && filled.is_ok()
        {
            filled = table.info().restore(saved, now);
        }
    });
    filled
}

impl SavedCounts {
    /// Returns the limit with this name, algorithm and sub-key.
    fn find(&self, names: &SavedNames) -> Option<SavedLimit<'_>> {
        let found = self.limits.iter().find(|limit| limit.names == names.names);
        found.map(|limit| SavedLimit { counts: self, limit })
    }
}
