//! Saved counts: the states and blocks of a limiter in a file, for the next process.
//!
//! # What a file contains
//!
//! - a version, the time of the limiter's clock, and the seed of the hashes, as the table stores keys as hashes only;
//! - for each limit its name, the types of its algorithm and of its sub-key, and then its keys, the debts that new keys
//!   inherit (`WhenFull::CarryOver`), and its blocks;
//! - the SHA-256 digest of all that. The digest detects incomplete and damaged files. It is no signature.
//!
//! # What is not saved
//!
//! A held cost is saved as charged in full at the time of the save, because no guard of the next process would settle it.
//! Requests in flight end with their process. A key that was idle is not saved: absent keys of the restored table are
//! decided no earlier than at the time of the save, as keys whose idle state was dropped.

mod file;
mod limit;
mod restore;
#[allow(clippy::module_inception, reason = "the method that names the module")]
mod save;
mod seed;
mod type_name;

pub(super) use self::file::{FileWriter, SavedCounts};
pub(super) use self::limit::{SavedLimit, SavedNames};
pub(super) use self::restore::Restore;
