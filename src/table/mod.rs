//! A bounded concurrent hash table of states.
//!
//! A key is a 64-bit hash, stored whole: the *fingerprint*. The fingerprint determines two candidate sets. The key's
//! entry is in a slot of one of them, or the key is absent. A set has a version, three fingerprints and three states.
//!
//! # Sequence lock
//!
//! Each set has a sequence lock: a version with a bit that is set while a writer holds the lock. The version grows with
//! every change. A reader loads the version, copies the state and validates the version. A writer replaces the version that
//! its reading was based on by the locked one. That fails if anything in the set has changed since. So a decision is an
//! optimistic transaction: read, decide, lock exactly what was read, write, unlock. A denial writes nothing. Without
//! the validation, a reader could return a state of which another thread had written a part, or a state of another key.
//!
//! A reading of an absent key depends on the versions of *both* sets, and its insertion locks both, in the order of
//! their indices. Without that, two threads could insert one key twice, and a reader could miss a key that a relocation
//! moves between its readings of the two sets. The common order prevents deadlock.
//!
//! # Horizons
//!
//! A slot with a state that is idle at the time of an insertion is free: there is no sweep. Threads read their clocks
//! before they lock, so a thread may find a key absent whose state was not idle at that thread's time. The table
//! therefore stores, for each group of sets, the *horizon*: the latest time at which a state dropped from these sets
//! became idle. An absent key is decided at the horizon if that is later than the thread's time. Without it, the usage
//! of the dropped state would be available twice.
//!
//! # Relocation and eviction
//!
//! An insertion that finds both sets full looks for a key that can move to its other set: see `relocation`. If no key
//! can move, the table is full, and [`WhenFull`] decides: see `eviction`.
//!
//! # Holds
//!
//! Amounts held on keys are stored beside the states: see `holds`. A key with a held amount keeps its slot.
//!
//! # Saving
//!
//! A thread can read all keys for a file while other threads decide: see `saving`.

#[cfg(test)]
mod by_idle_time;
mod entry;
mod eviction;
mod holds;
mod horizons;
mod relocation;
mod saving;
mod set;
#[allow(clippy::module_inception, reason = "the type that names the module")]
mod table;
mod when_full;

#[cfg(test)]
pub(crate) use self::by_idle_time::ByIdleTime;
pub(crate) use self::entry::{Entry, Location, LockedEntry, LookupError, Reading, SlotIndex, StoreError, TableEntry};
pub(crate) use self::eviction::{EvictionPolicy, TableFull};
pub(crate) use self::saving::SavedItem;
pub(crate) use self::set::LockToken;
pub(crate) use self::table::{Table, fingerprint};
pub use self::when_full::WhenFull;

#[cfg(all(test, not(loom)))]
mod tests;
