use std::io::{self, Write};

use super::file::FileWriter;
use super::limit::SavedNames;
use super::seed::seed_of;
use crate::error::Error;
use crate::store::memory::limiter::Memory;
use crate::store::memory::limits::MemoryLimits;

impl<Key, L> Memory<Key, L>
where
    Key: ?Sized,
    L: MemoryLimits<Key>,
{
    /// Saves the counts and blocks of all limits, for [`restore`](crate::MemoryBuilder::restore) in the next process.
    ///
    /// Save at shutdown after the last request, and then nothing is lost. To survive a crash, save every second while the
    /// limiter is in use: a key then gets at most what it was charged since the last save in addition. Decisions go on
    /// meanwhile. Each key is saved as it was at one moment after the call, and a decision that returned before the call
    /// is contained. A million keys with one bucket each take 49 megabytes, 0.08 s of processor time to save, and 0.6 s to
    /// restore (`cargo test --release --all-features --test memory snapshot_of_many_keys -- --nocapture`).
    ///
    /// The writer gets the parts of the file in order, and no decision waits for it. Write to a new file and rename it
    /// when `save` has returned, so that a crash leaves the previous file. Concurrent saves run one after another.
    ///
    /// **The file is a secret**: it contains the seed of the hashes, with which a client could choose keys that share a
    /// state. Only the user that runs the server should be able to read or write it (mode 0600).
    ///
    /// A [held](crate::limiter::Held) cost is saved as charged in full. Requests [in flight](crate::InFlight) are not
    /// saved. The clock must show Unix time, as [`SystemClock`](crate::SystemClock) does, because the next process reads
    /// the saved times by its own clock. Keys must have the same [`Hash`](std::hash::Hash) in the next process, which a
    /// change of the key's type or of the compiler can alter.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if the writer fails;
    /// - for the hasher [`RandomState`](std::hash::RandomState): its seed cannot be read. A hasher with a seed of your own is
    ///   supported; the file contains no seed then, and the next process must have the same one;
    /// - if a limit counts by a [`Fingerprint`](crate::key::Fingerprint) under the random pepper of the process, because
    ///   these keys change with each restart: set a [`Pepper`](crate::key::Pepper). A `struct` of your own that contains
    ///   such a key is not recognised.
    pub fn save(&self, mut writer: impl Write) -> Result<(), Error> {
        let seed = seed_of(&self.shared.hasher)?;
        // A hold with an id that has expired is charged as of its expiry, not of the save.
        self.shared.end_due();
        let now = self.now();
        let failed = |error: io::Error| {
            let message = format!("saving the counts failed: {error}; check the writer, and keep the previous file");
            Error::unavailable(message).with_source(error)
        };
        let mut file = FileWriter::start(&mut writer, now, &seed).map_err(failed)?;
        let mut saved = Ok(());
        L::for_each(&self.shared.tables, &mut |limit| {
            if saved.is_ok() {
                let names = limit.saved_names();
                saved = check_keys(&names).and_then(|()| limit.info().save(&names, now, &mut file).map_err(failed));
            }
        });
        saved.and_then(|()| file.finish().map_err(failed))
    }
}

/// # Errors
///
/// Returns an error if the limit's keys have no meaning for the next process.
fn check_keys(names: &SavedNames) -> Result<(), Error> {
    if names.is_of_process {
        let [limit, ..] = &names.names;
        return Err(Error::config(format!(
            "saving the counts failed: limit {limit:?} counts by fingerprints of secrets under the random pepper of this \
             process; set `.pepper(Pepper::new(..)?)` on the key extractor"
        )));
    }
    Ok(())
}
