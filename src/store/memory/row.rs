use std::any::Any;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::share::{Asked, Holding, Look, Needed, Room, Share};
use super::usage::{HeavyKey, KeyId, Usage};
use crate::algorithm::{Algorithm, Blocks, Charge, State};
use crate::clock::{Timestamp, whole_micros};
use crate::decision::{Name, Verdict};
use crate::error::Error;
use crate::limit::{Choose, Chooser, Limit, PartOf};
use crate::sync::AtomicU64;
use crate::table::{Full, Place, Spot, Table, Tenancy, WhenFull, fingerprint};

/// A limit with its table.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct Row<C: Chooser, P> {
    pub(super) limit: Limit<C, P>,
    pub(super) table: Table<CellOf<C>>,
    /// Until when keys are blocked. Made when the first one is, for the limit's heirs too.
    blocks: Arc<OnceLock<Table<[AtomicU64; 1]>>>,
    max_keys: usize,
}

/// Who has room in a limit's table, as an algorithm sees it.
struct Tenant<'a, A> {
    algorithm: &'a A,
    now: Timestamp,
}

impl<A: Algorithm> Tenancy<A::State> for Tenant<'_, A> {
    fn owes(&self, state: &A::State) -> (u64, u64) {
        let figures = self.algorithm.reading(state, self.now).figures();
        (figures.limit.saturating_sub(figures.remaining), whole_micros(figures.reset))
    }

    fn inherit(&self, state: &mut A::State, from: &A::State) {
        self.algorithm.inherit(state, from, self.now);
    }
}

/// A block is a moment: of two the one that ends first is forgotten.
struct Blocked;

impl Tenancy<[u64; 1]> for Blocked {
    fn owes(&self, &[until]: &[u64; 1]) -> (u64, u64) {
        (0, until)
    }

    fn inherit(&self, state: &mut [u64; 1], from: &[u64; 1]) {
        state[0] = state[0].max(from[0]);
    }
}

type StateOf<C> = <<C as Chooser>::Algorithm as Algorithm>::State;
type CellOf<C> = <<<C as Chooser>::Algorithm as Algorithm>::State as State>::Cell;

impl<C: Chooser + 'static, P: 'static> Row<C, P> {
    /// A limit with a table of its own.
    ///
    /// # Errors
    ///
    /// If the states could take more than `room.heap_bytes` on the heap.
    pub(super) fn new(limit: Limit<C, P>, room: Room) -> Result<Self, Error> {
        let words = limit.algorithm().same_for_all().map_or(Blocks::MAX_WORDS, Algorithm::state_words);
        let table = Table::with_room_for(room.max_keys, words, when_full(&limit, room));
        Self::with_tables(limit, room, table, Arc::default())
    }

    /// A limit that may have heirs: with the tables of the one that it is the heir of, if that is of its own kind.
    ///
    /// Its states have room for those of any heir: one kind's may differ in their number of words.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub(super) fn heir(limit: Limit<C, P>, room: Room, of: Option<&dyn Any>) -> Result<Self, Error> {
        let former = of.and_then(|former| former.downcast_ref::<Self>());
        let (table, blocks) = match former {
            Some(former) => (former.table.clone(), Arc::clone(&former.blocks)),
            None => (Table::with_room_for(room.max_keys, Blocks::MAX_WORDS, when_full(&limit, room)), Arc::default()),
        };
        Self::with_tables(limit, room, table, blocks)
    }

    fn with_tables(
        limit: Limit<C, P>,
        room: Room,
        table: Table<CellOf<C>>,
        blocks: Arc<OnceLock<Table<[AtomicU64; 1]>>>,
    ) -> Result<Self, Error> {
        let algorithm = limit.algorithm().same_for_all();
        let heap = algorithm.map_or(0, Algorithm::heap_bytes).saturating_mul(table.states());
        if heap > room.max_heap_bytes {
            return Err(Error::config(format!(
                "the limit {:?} may take {heap} bytes on the heap ({} keys have room), more than the {} allowed: lower \
                 `max_keys`, raise `max_heap_bytes`, or choose a SlidingWindow",
                limit.name(),
                table.slots(),
                room.max_heap_bytes,
            )));
        }
        Ok(Self { limit, table, blocks, max_keys: room.max_keys })
    }
}

impl<C: Chooser, P> Row<C, P> {
    #[inline(always)]
    pub(super) fn hash<Key: ?Sized, S: BuildHasher>(&self, asked: &Asked<'_, Key, S>) -> u64
    where
        P: PartOf<Key>,
        P::Part: Hash,
    {
        self.hash_of(asked.key, asked.hasher)
    }

    #[inline(always)]
    pub(super) fn hash_of<Key: ?Sized>(&self, key: &Key, hasher: &impl BuildHasher) -> u64
    where
        P: PartOf<Key>,
        P::Part: Hash,
    {
        self.limit.part().with_part(key, |part| hasher.hash_one(part))
    }

    /// Whether it refuses by itself, and by its states alone.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        !self.limit.is_shadow() && self.blocks.get().is_none()
    }

    /// What a key that is nowhere inherits.
    #[inline(always)]
    fn estate(&self, spot: &Spot, algorithm: &C::Algorithm, now: Timestamp) -> Option<StateOf<C>> {
        if spot.is_nowhere() { self.table.estate(spot, &Tenant { algorithm, now }) } else { None }
    }

    /// Without the lock: makes room for a key that found none, unless nobody is to be forgotten for it.
    pub(super) fn make_room_at(&self, spot: &Spot, now: Timestamp, algorithm: &C::Algorithm) -> Result<(), Full> {
        self.table.make_room(spot, now.as_micros(), &Tenant { algorithm, now })
    }

    /// What the limit says of a state.
    #[inline(always)]
    fn judge<Key: ?Sized, S>(
        &self,
        algorithm: &C::Algorithm,
        state: &StateOf<C>,
        hash: u64,
        asked: &Asked<'_, Key, S>,
        needed: Needed,
        look: &mut Look,
    ) {
        look.verdict = algorithm.peek(state, look.now, asked.ask);
        look.promises_turns = algorithm.promises_turns();
        if needed == Needed::Together {
            look.at_once = if look.promises_turns && look.verdict != Verdict::Allowed {
                algorithm.peek(state, look.now, asked.ask.within(Duration::ZERO))
            } else {
                look.verdict
            };
        }
        if let Some(retry_after) = self.blocked(hash, asked.now) {
            let blocked = Verdict::Denied { retry_after };
            // No turn is promised while it lasts: if there is one in time after it, it is to be asked for then.
            look.promises_turns &= !look.verdict.is_allowed();
            look.verdict = look.verdict.and(blocked);
            look.at_once = look.at_once.and(blocked);
        }
        if needed != Needed::Refusal || !look.verdict.is_allowed() {
            look.reading = algorithm.reading(state, look.now);
        }
    }

    /// For how long the key is blocked, if it is.
    #[inline(always)]
    fn blocked(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        blocked(self.blocks.get()?, hash, now)
    }
}

impl<Key: ?Sized, C, P, S> Share<Key, S> for Row<C, P>
where
    C: Choose<Key> + Send + Sync + 'static,
    P: PartOf<Key> + Send + Sync + 'static,
    P::Part: Hash,
    S: BuildHasher,
{
    #[inline(always)]
    fn look(&self, asked: &Asked<'_, Key, S>, needed: Needed, look: &mut Look) {
        let hash = self.hash(asked);
        let chosen = self.limit.algorithm().choose(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let seen = self.table.read(hash, &mut look.spot);
        look.now = not_before(Timestamp::from_micros(seen.horizon), asked.now, algorithm);
        let fresh_at = look.spot.place().map_or(seen.horizon, |place| self.table.fresh_at(place));
        look.ahead_of = is_far_ahead(fresh_at, asked.now, algorithm).then(|| algorithm.longest_reset());
        look.shadow = self.limit.is_shadow();
        match self.estate(&look.spot, algorithm, look.now) {
            None => self.judge(algorithm, &seen.state, hash, asked, needed, look),
            Some(state) if self.table.is_current(&look.spot) => {
                self.judge(algorithm, &state, hash, asked, needed, look);
            }
            Some(_) => self.look(asked, needed, look),
        }
    }

    fn is_current(&self, look: &Look) -> bool {
        self.table.is_current(&look.spot)
    }

    #[inline(always)]
    fn lock(&self, look: &Look) -> bool {
        self.table.lock(&look.spot)
    }

    fn unlock_unchanged(&self, look: &Look) {
        self.table.unlock_unchanged(&look.spot);
    }

    #[inline(always)]
    fn unlock(&self, look: &Look) {
        self.table.unlock(&look.spot);
    }

    #[inline(always)]
    fn place(&self, asked: &Asked<'_, Key, S>, look: &Look) -> Option<Place> {
        let chosen = self.limit.algorithm().choose(asked.key);
        let tenant = Tenant { algorithm: chosen.borrow(), now: look.now };
        self.table.place(&look.spot, look.now.as_micros(), &tenant)
    }

    fn make_room(&self, asked: &Asked<'_, Key, S>, look: &Look) -> Result<(), Full> {
        self.make_room_at(&look.spot, look.now, self.limit.algorithm().choose(asked.key).borrow())
    }

    fn is_full_for(&self, look: &Look) -> Result<(), Full> {
        self.table.is_full_for(&look.spot, look.now.as_micros())
    }

    #[inline(always)]
    fn commit(&self, asked: &Asked<'_, Key, S>, look: &mut Look, delay: Duration) -> Timestamp {
        let Some(place) = look.place else { return asked.now };
        let chosen = self.limit.algorithm().choose(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        {
            let state = &mut *self.table.edit(place);
            algorithm.commit(state, look.now, delay, asked.ask.cost);
            // As the next one to ask will see it.
            look.reading = algorithm.reading(state, asked.now);
        }
        Timestamp::from_micros(self.table.fresh_at(place))
    }

    fn settle(&self, asked: &Asked<'_, Key, S>, charge: Charge, actual: u64) -> Result<(), Full> {
        let (hash, now) = (self.hash(asked), asked.now);
        let chosen = self.limit.algorithm().choose(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let tenant = Tenant { algorithm, now };
        if let Some(more) = actual.checked_sub(charge.cost) {
            self.table.alter(hash, now.as_micros(), Some(&tenant), |table, place, horizon| {
                let now = in_time(table.fresh_at(place).max(horizon), asked, algorithm);
                let now = not_before(Timestamp::from_micros(horizon), now, algorithm);
                algorithm.commit(&mut table.edit(place), now, Duration::ZERO, more);
            })
        } else {
            self.table.alter(hash, now.as_micros(), None::<&Tenant<'_, C::Algorithm>>, |table, place, _| {
                let now = in_time(table.fresh_at(place), asked, algorithm);
                algorithm.give_back(&mut table.edit(place), now, charge, charge.cost - actual);
            })
        }
    }

    fn reset(&self, asked: &Asked<'_, Key, S>) {
        self.table.remove(self.hash(asked));
    }

    fn set(&self, asked: &Asked<'_, Key, S>, used: u64) -> Result<(), Full> {
        let (hash, now) = (self.hash(asked), asked.now);
        let chosen = self.limit.algorithm().choose(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        self.table.alter(hash, now.as_micros(), Some(&Tenant { algorithm, now }), |table, place, _| {
            table.clear(place);
            algorithm.commit(&mut table.edit(place), now, Duration::ZERO, used);
        })
    }

    fn block(&self, asked: &Asked<'_, Key, S>, until: Timestamp) {
        let hash = self.hash(asked);
        if until > asked.now {
            let blocks = self.blocks.get_or_init(|| Table::with_room_for(self.max_keys, 1, WhenFull::Forget));
            let blocked = blocks.alter(hash, asked.now.as_micros(), Some(&Blocked), |blocks, place, _| {
                *blocks.edit(place) = [until.as_micros()];
            });
            debug_assert!(blocked.is_ok(), "a table that forgets has room");
        } else if let Some(blocks) = self.blocks.get() {
            blocks.remove(hash);
        }
    }

    fn key_id(&self, asked: &Asked<'_, Key, S>) -> KeyId {
        KeyId(fingerprint(self.hash(asked)))
    }
}

impl<C: Chooser + Send + Sync + 'static, P: Send + Sync + 'static> Holding for Row<C, P> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_heir_of(&self, former: &dyn Any) -> bool {
        former.downcast_ref::<Self>().is_some_and(|former| self.table.is_that_of(&former.table))
    }

    fn name(&self) -> &Name {
        self.limit.shared_name()
    }

    fn usage(&self, now: Timestamp) -> Usage {
        Usage {
            limit: self.limit.name().to_owned(),
            live_keys: self.table.live(now.as_micros()),
            room: self.table.slots(),
            bytes: self.table.bytes(),
            forgotten: self.table.forgotten(),
        }
    }

    fn heaviest(&self, most: usize, now: Timestamp) -> Vec<HeavyKey> {
        let algorithm = self.limit.algorithm().same_for_all();
        let mut keys = Vec::new();
        self.table.for_each_live(now.as_micros(), |id, fresh_at, state| {
            let figures = algorithm.map(|algorithm| algorithm.reading(state, now).figures());
            let reset = Timestamp::from_micros(fresh_at).since(now);
            keys.push(HeavyKey { id: KeyId(id), reset, figures });
        });
        keys.sort_by(|a, b| b.weight().partial_cmp(&a.weight()).unwrap_or(std::cmp::Ordering::Equal));
        keys.truncate(most);
        keys
    }
}

/// A shadow limit never refuses, and to forget what it counted harms nobody.
fn when_full<C: Chooser, P>(limit: &Limit<C, P>, room: Room) -> WhenFull {
    if limit.is_shadow() { WhenFull::Forget } else { room.when_full }
}

/// Under the lock: the time that was asked at, unless that is so long ago that the state seems to be from a clock that was ahead.
fn in_time<Key: ?Sized, S>(fresh_at: u64, asked: &Asked<'_, Key, S>, algorithm: &impl Algorithm) -> Timestamp {
    if !is_far_ahead(fresh_at, asked.now, algorithm) {
        return asked.now;
    }
    // Nobody can have charged the key later than now.
    let now = asked.read_clock();
    if now.since(asked.now) > algorithm.longest_reset() { now } else { asked.now }
}

/// Whether a state is so far ahead of a time that the algorithm may not believe it: as where a clock has stepped back.
#[inline]
pub(super) fn is_far_ahead(fresh_at: u64, now: Timestamp, algorithm: &impl Algorithm) -> bool {
    fresh_at > now.after(algorithm.longest_reset()).as_micros()
}

/// `now`, or the horizon if that is later, unless it is so far ahead that the clock must have stepped back.
#[inline(always)]
pub(super) fn not_before(horizon: Timestamp, now: Timestamp, algorithm: &impl Algorithm) -> Timestamp {
    if horizon > now && horizon.since(now) <= algorithm.longest_reset() { horizon } else { now }
}

#[cold]
fn blocked(blocks: &Table<[AtomicU64; 1]>, hash: u64, now: Timestamp) -> Option<Duration> {
    let [until] = *blocks.read(hash, &mut { Spot::BLANK }).state;
    let until = Timestamp::from_micros(until);
    (until > now).then(|| until.since(now))
}
