use std::any::Any;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;
use crate::store::memory::hasher::{KeyHasher, OtherHasher, SeededHasher};

/// How the hashes of a file can be computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::memory) struct SavedSeed {
    /// The seed of the default hasher. `None` for another hasher, which the next process must have as well.
    pub(super) default: Option<[u64; 2]>,
    /// A hash that is different under another hasher or seed. For the default hasher it is one of fixed values, so it is
    /// also different where the standard library computes other hashes, for example on another processor.
    pub(super) probe: u64,
}

/// Returns the seed of a limiter's hasher.
///
/// # Errors
///
/// Returns an error for a hasher whose random seed cannot be read.
pub(in crate::store::memory) fn seed_of(hasher: &KeyHasher) -> Result<SavedSeed, Error> {
    match hasher {
        KeyHasher::Default(default) => Ok(SavedSeed { default: Some(default.seed), probe: probe(default) }),
        KeyHasher::Other(other) if (&**other as &dyn Any).is::<RandomState>() => Err(Error::unsupported(
            "saving the counts failed: the seed of `RandomState` cannot be read, so no other process can \
             find the keys; use the default hasher, or set one with a secret seed of your own by `hasher`",
        )),
        KeyHasher::Other(other) => Ok(SavedSeed { default: None, probe: empty_probe(&**other) }),
    }
}

/// Gives a limiter the hashes of a file.
///
/// # Errors
///
/// Returns an error, with the hasher unchanged, if the limiter has another hasher.
pub(super) fn adopt(hasher: &mut KeyHasher, saved: &SavedSeed) -> Result<(), Error> {
    let restored = saved.default.map(SeededHasher::from_seed);
    let same = match (hasher, restored) {
        (KeyHasher::Default(own), Some(restored)) if probe(&restored) == saved.probe => {
            *own = restored;
            true
        }
        (KeyHasher::Other(other), None) => empty_probe(&**other) == saved.probe,
        _ => false,
    };
    if same {
        return Ok(());
    }
    Err(Error::config(
        "restoring the saved counts failed: the file has other hashes of keys than this limiter; build the limiter with \
         the hasher and the seed of the process that has saved, on the same kind of processor, or start empty \
         (`restore_or_empty`)",
    ))
}

/// Hashes one value of each kind that keys consist of.
fn probe(hasher: &SeededHasher) -> u64 {
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let numbers = (1_u8, 2_u16, 3_u32, 4_u64, 5_u128, 6_usize, 'c', true);
    hasher.state.hash_one(("a key", [7_u8; 3].as_slice(), [8_u8; 16], addresses, numbers, Some(9_u64), None::<u64>))
}

/// Hashes nothing, because the hasher may accept keys of one type only. The result depends on the seed of any hasher that
/// starts with it.
fn empty_probe(hasher: &dyn OtherHasher) -> u64 {
    hasher.hash(&mut |_| ())
}
