use std::any::Any;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::blocks::Blocks;
use super::share::{Asked, HeldLimit, Holding, Look, Needed, Room, Share, read};
use super::usage::{KeyId, TopKey, Usage};
use crate::algorithm::{Algorithm, State};
use crate::clock::{Clock, Timestamp, micros_floor};
use crate::decision::{Name, Verdict};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::table::{Full, Place, Spot, Table, Tenancy, WhenFull, fingerprint};

/// A limit with its table.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct Row<C: AlgorithmSelector, P> {
    pub(super) limit: Limit<C, P>,
    pub(super) table: Table<CellOf<C>>,
    /// For the limit's heirs too.
    blocks: Arc<Blocks>,
    room: Room,
}

/// Who has room in a limit's table, as an algorithm sees it.
struct Tenant<'a, A> {
    algorithm: &'a A,
    now: Timestamp,
    when_full: WhenFull,
}

impl<A: Algorithm> Tenancy<A::State> for Tenant<'_, A> {
    fn owes(&self, state: &A::State) -> (u64, u64) {
        let figures = self.algorithm.snapshot(state, self.now).compute();
        (figures.limit.saturating_sub(figures.remaining), micros_floor(figures.reset))
    }

    fn inherit(&self, state: &mut A::State, from: &A::State) {
        self.algorithm.carry_over_debt(state, from, self.now);
    }

    fn when_full(&self) -> WhenFull {
        self.when_full
    }
}

type StateOf<C> = <<C as AlgorithmSelector>::Algorithm as Algorithm>::State;
type CellOf<C> = <<<C as AlgorithmSelector>::Algorithm as Algorithm>::State as State>::AtomicState;

impl<C: AlgorithmSelector + 'static, P: 'static> Row<C, P> {
    /// A limit with a table of its own.
    ///
    /// # Errors
    ///
    /// If the states could take more than `room.heap_bytes` on the heap.
    pub(super) fn new(limit: Limit<C, P>, room: Room) -> Result<Self, Error> {
        let words = limit.algorithm().fixed().map_or(crate::algorithm::Counters::MAX_WORDS, Algorithm::counter_words);
        let table = Table::with_room_for(room.max_keys, words, room.when_full);
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
        let former =
            of.and_then(|former| former.downcast_ref::<Self>()).filter(|former| limit.has_same_sub_key(&former.limit));
        let (table, blocks) = match former {
            Some(former) => (former.table.clone(), Arc::clone(&former.blocks)),
            None => (
                Table::with_room_for(room.max_keys, crate::algorithm::Counters::MAX_WORDS, room.when_full),
                Arc::default(),
            ),
        };
        Self::with_tables(limit, room, table, blocks)
    }

    fn with_tables(
        limit: Limit<C, P>,
        room: Room,
        table: Table<CellOf<C>>,
        blocks: Arc<Blocks>,
    ) -> Result<Self, Error> {
        let algorithm = limit.algorithm().fixed();
        let heap = algorithm.map_or(0, Algorithm::max_heap_bytes).saturating_mul(table.states());
        if heap > room.max_heap_bytes {
            return Err(Error::config(format!(
                "the limit {:?} may take {heap} bytes on the heap ({} keys have room), more than the {} allowed: lower \
                 `max_keys`, raise `max_heap_bytes`, or choose a SlidingWindow",
                limit.name(),
                table.slots(),
                room.max_heap_bytes,
            )));
        }
        Ok(Self { limit, table, blocks, room })
    }
}

impl<C: AlgorithmSelector, P> Row<C, P> {
    #[inline(always)]
    pub(super) fn hash<Key: ?Sized, S: BuildHasher>(&self, asked: &Asked<'_, Key, S>) -> u64
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        self.hash_of(asked.key, asked.hasher)
    }

    #[inline(always)]
    pub(super) fn hash_of<Key: ?Sized>(&self, key: &Key, hasher: &impl BuildHasher) -> u64
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        self.limit.sub_key().with_sub_key(key, |part| hasher.hash_one(part))
    }

    /// Whether it refuses by itself, and by its states alone.
    #[inline(always)]
    pub(super) fn is_plain(&self, now: Timestamp) -> bool {
        !self.limit.is_shadow() && !self.blocks.any(now)
    }

    fn tenant<'a>(&self, algorithm: &'a C::Algorithm, now: Timestamp) -> Tenant<'a, C::Algorithm> {
        Tenant { algorithm, now, when_full: self.when_full() }
    }

    /// A shadow limit never denies, and to evict what it counted harms nobody.
    fn when_full(&self) -> WhenFull {
        match self.room.when_full {
            WhenFull::Deny if self.limit.is_shadow() => WhenFull::Evict,
            when_full => when_full,
        }
    }

    /// What a key that is nowhere inherits.
    #[inline(always)]
    fn estate(&self, spot: &Spot, algorithm: &C::Algorithm, now: Timestamp) -> Option<StateOf<C>> {
        if spot.is_nowhere() { self.table.estate(spot, &self.tenant(algorithm, now)) } else { None }
    }

    /// Without the lock: makes room for a key that found none, unless nobody is to be forgotten for it.
    pub(super) fn make_room_at(&self, spot: &Spot, now: Timestamp, algorithm: &C::Algorithm) -> Result<(), Full> {
        self.table.make_room(spot, now.as_micros(), &self.tenant(algorithm, now))
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
        look.supports_scheduling = algorithm.supports_scheduling();
        if look.held > 0 || asked.ask.hold {
            Self::judge_with_held(algorithm, state, asked, look);
        } else {
            look.verdict = algorithm.peek(state, look.now, asked.ask);
        }
        if needed == Needed::Together {
            look.at_once = if look.supports_scheduling && look.verdict != Verdict::Allowed {
                algorithm.peek_with_held(state, look.now, asked.ask.max_delay(Duration::ZERO), look.held).0
            } else {
                look.verdict
            };
        }
        look.blocked = self.blocks.remaining(hash, asked.now).unwrap_or_default();
        if !look.blocked.is_zero() {
            let blocked = Verdict::Denied { retry_after: look.blocked };
            // No start is scheduled while it lasts. If there is one in time after it, the caller asks for it then.
            look.supports_scheduling &= !look.verdict.is_allowed();
            look.verdict = look.verdict.stricter_of(blocked);
            look.at_once = look.at_once.stricter_of(blocked);
        }
        if look.held == 0 && (needed != Needed::Rejection || !look.verdict.is_allowed()) {
            look.reading = algorithm.snapshot(state, look.now);
        }
    }

    /// What is held counts as if it were charged. A hold starts now or not at all, as it changes no state that a later start
    /// could be scheduled in.
    #[cold]
    fn judge_with_held<Key: ?Sized, S>(
        algorithm: &C::Algorithm,
        state: &StateOf<C>,
        asked: &Asked<'_, Key, S>,
        look: &mut Look,
    ) {
        let ask = if asked.ask.hold { asked.ask.max_delay(Duration::ZERO) } else { asked.ask };
        look.supports_scheduling &= !asked.ask.hold;
        (look.verdict, look.reading) = algorithm.peek_with_held(state, look.now, ask, look.held);
    }
}

impl<Key: ?Sized, C, P, S> Share<Key, S> for Row<C, P>
where
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    #[inline(always)]
    fn look(&self, asked: &Asked<'_, Key, S>, needed: Needed, look: &mut Look) {
        let hash = self.hash(asked);
        let chosen = self.limit.algorithm().select(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let seen = self.table.read(hash, &mut look.spot);
        look.now = not_before(Timestamp::from_micros(seen.horizon), asked.now, algorithm);
        let idle_at = look.spot.place().map_or(seen.horizon, |place| self.table.idle_at(place));
        look.ahead_of = is_far_ahead(idle_at, asked.now, algorithm).then(|| algorithm.max_reset());
        look.shadow = self.limit.is_shadow();
        look.held = seen.held;
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
        let chosen = self.limit.algorithm().select(asked.key);
        let tenant = self.tenant(chosen.borrow(), look.now);
        self.table.place(&look.spot, look.now.as_micros(), &tenant)
    }

    fn make_room(&self, asked: &Asked<'_, Key, S>, look: &Look) -> Result<(), Full> {
        self.make_room_at(&look.spot, look.now, self.limit.algorithm().select(asked.key).borrow())
    }

    fn is_full_for(&self, look: &Look) -> Result<(), Full> {
        self.table.is_full_for(&look.spot, look.now.as_micros(), self.when_full())
    }

    #[inline(always)]
    fn charge(&self, asked: &Asked<'_, Key, S>, look: &mut Look, delay: Duration) {
        let Some(place) = look.place else { return };
        let chosen = self.limit.algorithm().select(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let state = &mut *self.table.edit(place);
        algorithm.charge(state, look.now, delay, asked.ask.cost);
        // As the next one to ask will see it.
        look.reading = if look.held == 0 {
            algorithm.snapshot(state, asked.now)
        } else {
            algorithm.peek_with_held(state, asked.now, asked.ask, look.held).1
        };
    }

    fn hold(&self, asked: &Asked<'_, Key, S>, look: &mut Look) {
        let Some(place) = look.place else { return };
        self.table.hold(&look.spot, asked.ask.cost);
        let chosen = self.limit.algorithm().select(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let held = look.held.saturating_add(asked.ask.cost);
        let state = &*self.table.edit(place);
        look.reading = algorithm.peek_with_held(state, look.now, asked.ask, held).1;
    }

    fn held_limit(&self, asked: &Asked<'_, Key, S>, look: &Look) -> HeldLimit {
        let own = self.limit.algorithm().select_owned(asked.key);
        let algorithm = own.map(|own| Box::new(own) as Box<dyn Any + Send + Sync>);
        HeldLimit { table: self.table.id(), hash: look.spot.hash(), algorithm }
    }

    fn reset(&self, asked: &Asked<'_, Key, S>) {
        self.table.remove(self.hash(asked));
    }

    fn set(&self, asked: &Asked<'_, Key, S>, used: u64) -> Result<(), Full> {
        let (hash, now) = (self.hash(asked), asked.now);
        let chosen = self.limit.algorithm().select(asked.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        self.table.alter(hash, now.as_micros(), Some(&self.tenant(algorithm, now)), |table, place, _| {
            table.clear(place);
            algorithm.charge(&mut table.edit(place), now, Duration::ZERO, used);
        })
    }

    fn block(&self, asked: &Asked<'_, Key, S>, until: Timestamp) {
        self.blocks.set(self.hash(asked), asked.now, until, self.room.max_keys);
    }

    fn name_limit(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        if self.limit.is_shadow() {
            return;
        }
        let chosen = self.limit.algorithm().select(key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let max_waiting = algorithm.max_waiting();
        let name = self.limit.name_handle().as_str();
        self.limit.sub_key().with_sub_key(key, |part| limits.add_with_max_waiting(name, part, max_waiting));
    }

    fn key_id(&self, asked: &Asked<'_, Key, S>) -> KeyId {
        KeyId::new(fingerprint(self.hash(asked)))
    }
}

impl<C: AlgorithmSelector + Send + Sync + 'static, P: Send + Sync + 'static> Holding for Row<C, P> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn table_id(&self) -> u64 {
        self.table.id()
    }

    fn name(&self) -> &Name {
        self.limit.name_handle()
    }

    fn settle(&self, limit: &HeldLimit, held: u64, actual: u64, clock: &dyn Clock) -> Result<(), Full> {
        let own = limit.algorithm.as_ref().and_then(|own| own.downcast_ref::<C::Algorithm>());
        let now = read(clock);
        let Some(algorithm) = own.or_else(|| self.limit.algorithm().fixed()) else { return Ok(()) };
        let end = |table: &Table<CellOf<C>>, place: Place, horizon: u64| {
            table.end_hold(limit.hash, held);
            if actual > 0 {
                let now = in_time(table.idle_at(place).max(horizon), now, clock, algorithm);
                let now = not_before(Timestamp::from_micros(horizon), now, algorithm);
                algorithm.charge(&mut table.edit(place), now, Duration::ZERO, actual);
            }
        };
        if actual > 0 {
            self.table.alter(limit.hash, now.as_micros(), Some(&self.tenant(algorithm, now)), end)
        } else {
            self.table.alter(limit.hash, now.as_micros(), None::<&Tenant<'_, C::Algorithm>>, end)
        }
    }

    fn usage(&self, now: Timestamp) -> Usage {
        let (held_keys, held) = self.table.holds();
        Usage {
            limit: self.limit.name().to_owned(),
            live_keys: self.table.live(now.as_micros()),
            capacity: self.table.slots(),
            bytes: self.table.bytes() + self.blocks.bytes(),
            evicted: self.table.forgotten(),
            held_keys,
            held,
        }
    }

    fn top_keys(&self, most: usize, now: Timestamp) -> Vec<TopKey> {
        let algorithm = self.limit.algorithm().fixed();
        let mut keys = Vec::new();
        self.table.for_each_live(now.as_micros(), |id, fresh_at, state| {
            let figures = algorithm.map(|algorithm| algorithm.snapshot(state, now).compute());
            let reset = Timestamp::from_micros(fresh_at).saturating_since(now);
            keys.push(TopKey { id: KeyId::new(id), reset, figures });
        });
        keys.sort_by(|a, b| b.weight().partial_cmp(&a.weight()).unwrap_or(std::cmp::Ordering::Equal));
        keys.truncate(most);
        keys
    }
}

/// Under the lock: the time that was read before it, unless that is so long ago that the state seems to be from a clock that was
/// ahead.
fn in_time(idle_at: u64, before: Timestamp, clock: &dyn Clock, algorithm: &impl Algorithm) -> Timestamp {
    if !is_far_ahead(idle_at, before, algorithm) {
        return before;
    }
    // Nobody can have charged the key later than now.
    let now = read(clock);
    if now.saturating_since(before) > algorithm.max_reset() { now } else { before }
}

/// Whether a state is so far ahead of a time that the algorithm may not believe it: as where a clock has stepped back.
#[inline]
pub(super) fn is_far_ahead(idle_at: u64, now: Timestamp, algorithm: &impl Algorithm) -> bool {
    idle_at > now.saturating_add(algorithm.max_reset()).as_micros()
}

/// `now`, or the horizon if that is later, unless it is so far ahead that the clock must have stepped back.
#[inline(always)]
pub(super) fn not_before(horizon: Timestamp, now: Timestamp, algorithm: &impl Algorithm) -> Timestamp {
    if horizon > now && horizon.saturating_since(now) <= algorithm.max_reset() { horizon } else { now }
}
