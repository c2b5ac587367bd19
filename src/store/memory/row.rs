use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crate::algorithm::{Algorithm, Blocks, Cell, Charge, State};
use crate::clock::Timestamp;
use crate::decision::{Ask, Name, Reading, Verdict};
use crate::error::Error;
use crate::limit::{Choose, Chooser, Limit, PartOf};
use crate::sync::Backoff;
use crate::table::{Place, Spot, Table};

/// A limit with its table.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct Row<C: Chooser, P> {
    limit: Limit<C, P>,
    table: Table<CellOf<C>>,
}

type CellOf<C> = <<<C as Chooser>::Algorithm as Algorithm>::State as State>::Cell;

impl<C: Chooser, P> Row<C, P> {
    /// # Errors
    ///
    /// If the states could take more than `room.heap_bytes` on the heap.
    pub(super) fn new(limit: Limit<C, P>, room: Room) -> Result<Self, Error> {
        let algorithm = limit.algorithm().same_for_all();
        let words = algorithm.map_or(Blocks::MAX_WORDS, Algorithm::state_words);
        let table = Table::with_room_for(room.max_keys, words);
        let heap = algorithm.map_or(0, Algorithm::heap_bytes).saturating_mul(table.slots());
        if heap > room.max_heap_bytes {
            return Err(Error::config(format!(
                "the limit {:?} may take {heap} bytes on the heap ({} keys have room), more than the {} allowed: lower \
                 `max_keys`, raise `max_heap_bytes`, or choose a SlidingWindow",
                limit.name(),
                table.slots(),
                room.max_heap_bytes,
            )));
        }
        Ok(Self { limit, table })
    }
}

/// The room that each limit has.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Room {
    pub(super) max_keys: usize,
    pub(super) max_heap_bytes: usize,
}

/// One limit's share in a transaction, whatever its algorithm and the part of the key that it counts by.
pub trait Share<Key: ?Sized, S>: Send + Sync {
    fn name(&self) -> &Name;

    /// Reads and peeks.
    fn look(&self, asked: &Asked<'_, Key, S>, with_reading: bool) -> Look;
    fn is_current(&self, look: &Look) -> bool;

    fn lock(&self, look: &Look) -> bool;
    fn unlock_unchanged(&self, look: &Look);
    fn unlock(&self, look: &Look);

    /// Under the lock: the slot for the key, an empty one for a new key. `None` if there is no room.
    fn place(&self, look: &Look) -> Option<Place>;
    /// Without the lock: makes room for a key that found none.
    fn make_room(&self, look: &Look);
    /// Under the lock: charges. Returns the figures after it, and until when the charge counts.
    fn commit(&self, asked: &Asked<'_, Key, S>, look: &Look, place: Place, delay: Duration) -> (Reading, Timestamp);

    fn settle(&self, asked: &Asked<'_, Key, S>, charge: Charge, actual: u64);
    fn reset(&self, asked: &Asked<'_, Key, S>);

    fn live(&self, now: Timestamp) -> usize;
    fn bytes(&self) -> usize;
    fn slots(&self) -> usize;
}

/// What is asked in a transaction, for whom, when.
#[allow(missing_debug_implementations, reason = "a key may be a secret")]
pub struct Asked<'a, Key: ?Sized, S> {
    pub(super) hasher: &'a S,
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    pub(super) ask: Ask,
}

/// What one limit says by itself, and what it read that from.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    spot: Spot,
    /// The time to decide at: that of the clock, or for a key that is not there the sets' horizon if that is later.
    now: Timestamp,
    pub(super) verdict: Verdict,
    pub(super) reading: Option<Reading>,
    pub(super) promises_turns: bool,
    pub(super) place: Option<Place>,
}

impl Look {
    pub(super) const BLANK: Self = Self {
        spot: Spot::BLANK,
        now: Timestamp::EPOCH,
        verdict: Verdict::Never,
        reading: None,
        promises_turns: false,
        place: None,
    };
}

impl<C: Chooser, P> Row<C, P> {
    #[inline]
    fn hash<Key: ?Sized, S: BuildHasher>(&self, asked: &Asked<'_, Key, S>) -> u64
    where
        P: PartOf<Key>,
        P::Part: Hash,
    {
        self.limit.part().with_part(asked.key, |part| asked.hasher.hash_one(part))
    }

    /// Changes the key's state, which is made if there is none and `insert` holds.
    fn alter(&self, hash: u64, now: Timestamp, insert: bool, change: impl Fn(&mut StateOf<C>)) {
        let mut backoff = Backoff::new();
        loop {
            let (spot, ()) = self.table.read(hash, |_, _| ());
            if spot.is_nowhere() && !insert {
                return;
            }
            if !self.table.lock(&spot) {
                backoff.wait();
                continue;
            }
            let unlock = Unlock { table: &self.table, spot: &spot };
            if let Some(place) = self.table.place(&spot, now.as_micros()) {
                self.table.write(place, &change);
                return;
            }
            drop(unlock);
            self.table.make_room(&spot, now.as_micros());
        }
    }
}

type StateOf<C> = <CellOf<C> as Cell>::State;

/// Unlocks also when the user's algorithm panics.
struct Unlock<'a, C: Cell> {
    table: &'a Table<C>,
    spot: &'a Spot,
}

impl<C: Cell> Drop for Unlock<'_, C> {
    fn drop(&mut self) {
        self.table.unlock(self.spot);
    }
}

impl<Key: ?Sized, C, P, S> Share<Key, S> for Row<C, P>
where
    C: Choose<Key> + Send + Sync,
    P: PartOf<Key> + Send + Sync,
    P::Part: Hash,
    S: BuildHasher,
{
    fn name(&self) -> &Name {
        self.limit.shared_name()
    }

    #[inline]
    fn look(&self, asked: &Asked<'_, Key, S>, with_reading: bool) -> Look {
        let hash = self.hash(asked);
        self.limit.algorithm().choose(asked.key, |algorithm| {
            let (spot, (now, verdict, reading)) = self.table.read(hash, |state, horizon| {
                let now = match horizon {
                    None => asked.now,
                    Some(horizon) => not_before(Timestamp::from_micros(horizon), asked.now, algorithm),
                };
                let verdict = algorithm.peek(state, now, asked.ask);
                let reading = (with_reading || !verdict.is_allowed()).then(|| algorithm.reading(state, now));
                (now, verdict, reading)
            });
            Look { spot, now, verdict, reading, promises_turns: algorithm.promises_turns(), place: None }
        })
    }

    fn is_current(&self, look: &Look) -> bool {
        self.table.is_current(&look.spot)
    }

    #[inline]
    fn lock(&self, look: &Look) -> bool {
        self.table.lock(&look.spot)
    }

    fn unlock_unchanged(&self, look: &Look) {
        self.table.unlock_unchanged(&look.spot);
    }

    #[inline]
    fn unlock(&self, look: &Look) {
        self.table.unlock(&look.spot);
    }

    #[inline]
    fn place(&self, look: &Look) -> Option<Place> {
        self.table.place(&look.spot, look.now.as_micros())
    }

    fn make_room(&self, look: &Look) {
        self.table.make_room(&look.spot, look.now.as_micros());
    }

    #[inline]
    fn commit(&self, asked: &Asked<'_, Key, S>, look: &Look, place: Place, delay: Duration) -> (Reading, Timestamp) {
        self.limit.algorithm().choose(asked.key, |algorithm| {
            let reading = self.table.write(place, |state| {
                algorithm.commit(state, look.now, delay, asked.ask.cost);
                algorithm.reading(state, look.now)
            });
            (reading, Timestamp::from_micros(self.table.fresh_at(place)))
        })
    }

    fn settle(&self, asked: &Asked<'_, Key, S>, charge: Charge, actual: u64) {
        let hash = self.hash(asked);
        self.limit.algorithm().choose(asked.key, |algorithm| match actual.checked_sub(charge.cost) {
            Some(0) => {}
            Some(more) => {
                self.alter(hash, asked.now, true, |state| algorithm.commit(state, asked.now, Duration::ZERO, more));
            }
            None => self.alter(hash, asked.now, false, |state| {
                algorithm.give_back(state, asked.now, charge, charge.cost - actual);
            }),
        });
    }

    fn reset(&self, asked: &Asked<'_, Key, S>) {
        self.table.remove(self.hash(asked));
    }

    fn live(&self, now: Timestamp) -> usize {
        self.table.live(now.as_micros())
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
    }

    fn slots(&self) -> usize {
        self.table.slots()
    }
}

/// `now`, or the horizon if that is later, unless it is so far ahead that the clock must have stepped back.
#[inline]
fn not_before(horizon: Timestamp, now: Timestamp, algorithm: &impl Algorithm) -> Timestamp {
    if horizon > now && horizon.since(now) <= algorithm.longest_reset() { horizon } else { now }
}
