//! One limit of a decision, without the types of its algorithm and its key.

use std::borrow::Borrow;
use std::cell::{Cell, OnceCell, RefCell};
use std::time::Duration;

use super::chain::{PartList, PlainChain};
use super::limit_table::{KeyedTable, LimitTable, StateOf};
use super::plain::PlainLimit;
use super::table::{Block, Eviction, Keys, ShardGuard, SlotIndex, TableFull};
use super::transaction_limit::AcquireContext;
use crate::algorithm::{Algorithm, State};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, BlockReason};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::store::inner::{
    AlgorithmExt as _, HeldEntry, LimitNumbers, LimitOfKey, LimitReading, Name, ReadMode, Transition, limit_id,
    micros_floor,
};

/// One limit of a decision. All functions of users have run before: the sub-key, the condition, the choice of an algorithm.
/// Under the lock only the algorithm runs.
#[allow(private_interfaces, reason = "named by a hidden trait only")]
pub trait Part {
    fn name(&self) -> &Name;
    /// The hash of the sub-key.
    fn key_hash(&self) -> u64;
    /// Names the limit, unless it is a shadow.
    fn name_limit(&self, limits: &mut LimitsOfKey<'_>);
    /// Removes the key's state.
    fn reset(&self);
    /// Makes the key's state the one after a charge of `used` on a never-seen key.
    fn set(&self, used: u64, read: Timestamp, clock: &dyn Clock) -> Result<(), TableFull>;
    /// Charges `cost` without asking.
    fn surcharge(&self, cost: u64, read: Timestamp, clock: &dyn Clock) -> Result<(), TableFull>;
    /// Blocks the key until this time. A time that is not in the future removes the block.
    fn block(&self, now: Timestamp, until: Timestamp, reason: BlockReason);
    /// The identity of the limit's table. Locks are taken in this order, whatever the order of the limits is.
    fn table_id(&self) -> u64;
    /// Locks the key's shard until the part is dropped. Returns the time of the last decision there.
    fn lock(&self) -> u64;
    /// Starts the decision, after all parts are locked.
    fn start(&self, now: Timestamp);
    /// Ends the holds in the shard whose requests last longer than the maximum. Adds the table and the key of each to `ended`.
    fn end_due(&self, now: Timestamp, ended: &mut Vec<(u64, u64)>);
    /// Charges the plain case of this limit and of the `rest`, whose tables come later: only the states of the keys, and what
    /// is held on them, determine the decision, and all limits allow the request immediately. A mark is not reached, and the units that are
    /// kept free are left. Returns `false`, with nothing charged, in any other case.
    ///
    /// A limit decides under its lock, then lets the rest decide, and charges only if they have: all that is between is on
    /// the stack (row "memory Vec of two limits" of benches/figures.md: 1.5 times as long with a call for each step).
    fn charge_plain<'p>(&'p self, rest: Option<&'p PartList<'p>>, is_alone: bool, chain: &mut PlainChain<'p>) -> bool;
    /// Reads the state and decides as of `now`.
    fn read(&self, now: Timestamp, mode: ReadMode) -> LimitReading;
    /// Finds a slot for the key.
    fn ensure_slot(&self) -> Result<(), TableFull>;
    /// Returns an error if an absent key would be denied because the table is full.
    fn is_full(&self) -> Result<(), TableFull>;
    /// Decides what a charge for a start after `delay` stores. Changes nothing: an algorithm that panics leaves nothing
    /// charged.
    fn prepare(&self, reading: &LimitReading, delay: Duration);
    /// Charges what was prepared, or holds the cost. Returns the numbers after it.
    fn commit(&self, reading: &LimitReading) -> LimitNumbers;
    /// Returns what the settlement of the hold needs. From here on, the caller ends the hold.
    fn take_hold(&self, reading: &LimitReading) -> HeldEntry;
}

pub(super) struct LimitPart<'a, C: AlgorithmSelector, Chosen> {
    plain: PlainLimit<'a, C, Chosen>,
    /// The algorithm once more, for a hold, if the key chooses it.
    own: Cell<Option<C::Algorithm>>,
    /// The options of the decision.
    options: &'a AcquireOptions,
    /// What was charged for the request before.
    charge_before: u64,
    locked: RefCell<Option<Locked<'a, C::Algorithm>>>,
}

struct Locked<'a, A: Algorithm> {
    keys: ShardGuard<'a, A>,
    slot: Option<SlotIndex>,
    /// The time of the decision in this limit: for an absent key the horizon, if that is later.
    now: Timestamp,
    /// The time of the decision, from which its numbers count.
    at: Timestamp,
    next: Option<<A::State as State>::Next>,
    /// What is held, until the caller takes it: the amount, and the number and the deadline of the hold.
    placed: Option<(u64, (u64, u64))>,
}

impl<'a, C: AlgorithmSelector, Chosen: Borrow<C::Algorithm>> LimitPart<'a, C, Chosen> {
    /// Returns the part of a limit that applies to the key.
    // Row "memory Vec of two limits" of benches/figures.md: 1.2 times as long if the hash is computed here.
    #[inline]
    pub(super) fn new<Key, P>(limit: &'a KeyedTable<C, P>, context: &'a AcquireContext<'_, Key>, hash: u64) -> Self
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key, Selected<'a> = Chosen>,
        P: SubKeyOf<Key>,
    {
        let AcquireContext { key, options, .. } = context;
        Self {
            plain: PlainLimit::of::<true, _, _>(limit, context, hash),
            own: Cell::new(limit.table.own_algorithm(key, options)),
            options,
            charge_before: context.charge_before.map_or(0, |charged| limit.table.limit.charge_before_of(*charged)),
            locked: RefCell::new(None),
        }
    }

    fn algorithm(&self) -> &C::Algorithm {
        self.plain.chosen.borrow()
    }

    fn eviction(&self, now: Timestamp) -> Eviction<'_, C::Algorithm> {
        self.plain.table.eviction(Some(self.algorithm()), now)
    }

    #[inline]
    fn transition(&self) -> Transition<'_, C::Algorithm> {
        let transition = self.plain.table.limit.transition(self.algorithm(), self.plain.kept_free, *self.options);
        if self.charge_before == 0 { transition } else { transition.less(self.charge_before) }
    }

    /// Holds the cost after the rest of the limits: see [`Part::charge_plain`].
    fn hold_plain<'p>(
        &'p self,
        rest: Option<&'p PartList<'p>>,
        keys: &mut Keys<C::Algorithm>,
        now: Timestamp,
        is_alone: bool,
        chain: &mut PlainChain<'p>,
    ) -> bool {
        if chain.held.is_none() {
            return false;
        }
        let Some(charged) = self.plain.decide_hold(keys, now, self.options) else { return false };
        if let Some(PartList { part, rest }) = rest
            && !part.charge_plain(*rest, false, chain)
        {
            return false;
        }
        let entry = self.plain.hold(keys, now, self.own.take());
        if let Some(held) = &mut chain.held {
            held.add(entry);
        }
        let remaining = if is_alone || chain.lists() { 0 } else { charged.remaining() };
        chain.add(charged, remaining);
        true
    }

    /// Runs `f` on the locked shard.
    #[inline]
    fn with_locked<R>(&self, f: impl FnOnce(&mut Locked<'a, C::Algorithm>) -> R) -> Option<R> {
        self.locked.borrow_mut().as_mut().map(f)
    }
}

impl<C: AlgorithmSelector, Chosen: Borrow<C::Algorithm>> Part for LimitPart<'_, C, Chosen> {
    fn name(&self) -> &Name {
        self.plain.table.limit.name_handle()
    }

    fn key_hash(&self) -> u64 {
        self.plain.hash
    }

    fn name_limit(&self, limits: &mut LimitsOfKey<'_>) {
        let limit = &self.plain.table.limit;
        if limit.is_shadow() {
            return;
        }
        limits.add_limit(LimitOfKey {
            name: limit.name(),
            id: limit_id((self.table_id(), self.plain.hash)),
            is_of_store: true,
            cost: limit.cost(),
            kept_free: self.plain.kept_free.unwrap_or_default(),
            share: limit.share(),
            max_waiting: self.algorithm().max_waiting(),
        });
    }

    fn reset(&self) {
        self.plain.lock().remove(self.plain.hash, self.plain.table.table.info());
    }

    fn set(&self, used: u64, read: Timestamp, clock: &dyn Clock) -> Result<(), TableFull> {
        let (table, hash, algorithm) = (self.plain.table, self.plain.hash, self.algorithm());
        let mut keys = self.plain.lock();
        let now = keys.decide_at(read, clock);
        let slot = keys.insert(hash, &table.eviction(Some(algorithm), now))?;
        let mut state = table.table.info().zero.clone();
        algorithm.charge(&mut state, now, Duration::ZERO, used);
        *keys.state_mut(slot) = state;
        Ok(())
    }

    fn surcharge(&self, cost: u64, read: Timestamp, clock: &dyn Clock) -> Result<(), TableFull> {
        let mut keys = self.plain.lock();
        let now = keys.decide_at(read, clock);
        self.plain.table.charge(self.plain.hash, cost, now, &mut keys, self.algorithm())
    }

    fn block(&self, now: Timestamp, until: Timestamp, reason: BlockReason) {
        let (hash, duration) = (self.plain.hash, until.saturating_since(now));
        let block = Block { until: until.as_micros(), duration: reason.pack(micros_floor(duration)) };
        let block = (!duration.is_zero()).then_some(block);
        self.plain.lock().set_block(hash, block, now, self.plain.table.table.info());
    }

    fn table_id(&self) -> u64 {
        self.plain.table.table.id()
    }

    fn lock(&self) -> u64 {
        let keys = self.plain.table.table.lock(self.plain.hash);
        let last = keys.last_decided_at();
        let (slot, now, at) = (None, Timestamp::EPOCH, Timestamp::EPOCH);
        *self.locked.borrow_mut() = Some(Locked { keys, slot, now, at, next: None, placed: None });
        last
    }

    fn start(&self, now: Timestamp) {
        self.with_locked(|locked| {
            locked.keys.set_last_decided_at(now);
            locked.slot = locked.keys.find(self.plain.hash);
            let is_absent = locked.slot.is_none();
            locked.at = now;
            locked.now = if is_absent { locked.keys.time_of_absent(now, self.algorithm()) } else { now };
        });
    }

    fn end_due(&self, now: Timestamp, ended: &mut Vec<(u64, u64)>) {
        if C::Algorithm::HELD_UNTIL_END {
            let due = self.with_locked(|locked| locked.keys.end_due(now)).unwrap_or_default();
            ended.extend(due.into_iter().map(|hash| (self.table_id(), hash)));
        }
    }

    fn charge_plain<'p>(&'p self, rest: Option<&'p PartList<'p>>, is_alone: bool, chain: &mut PlainChain<'p>) -> bool {
        let (LimitTable { limit, table, .. }, cost) = (self.plain.table, self.plain.options.cost);
        if cost == 0 || !chain.enter(table.id(), limit.share(), limit.is_shadow(), rest.is_none()) {
            return false;
        }
        let mut keys = self.plain.lock();
        let Some(now) = chain.decide_at(table.id(), &mut keys) else { return false };
        if limit.holds(self.options) {
            return self.hold_plain(rest, &mut keys, now, is_alone, chain);
        }
        let Some(allowed) = self.plain.decide::<true>(&mut keys, now) else { return false };
        if let Some(PartList { part, rest }) = rest
            && !part.charge_plain(*rest, false, chain)
        {
            return false;
        }
        let mut charged = self.plain.charge::<true>(allowed, now);
        charged.supports_scheduling &= charged.is_shadow || !self.options.hold;
        // The function of the snapshot is known here, and in line.
        let remaining = if is_alone || chain.lists() { 0 } else { charged.remaining() };
        chain.add(charged, remaining);
        true
    }

    #[inline]
    fn read(&self, now: Timestamp, mode: ReadMode) -> LimitReading {
        let mut locked = self.locked.borrow_mut();
        let Some(Locked { keys, slot, .. }) = &mut *locked else { return LimitReading::EMPTY };
        let (block, held, transition) =
            (keys.block(self.plain.hash, now), keys.held(self.plain.hash), self.transition());
        let (debt, info, at) = (OnceCell::new(), self.plain.table.table.info(), now);
        let mut now = now;
        let state = if let Some(slot) = *slot {
            keys.state(slot)
        } else {
            now = keys.time_of_absent(now, self.algorithm());
            let inherited = keys.inherited_debt(self.plain.hash, &self.eviction(now));
            inherited.map_or(&info.zero, |inherited| debt.get_or_init(|| inherited))
        };
        let reading = transition.read(state, held, block, now, mode);
        if now > at { reading.as_of_earlier(now.saturating_since(at)) } else { reading }
    }

    fn ensure_slot(&self) -> Result<(), TableFull> {
        let slot = self.with_locked(|Locked { keys, slot, now, .. }| {
            if slot.is_none() {
                *slot = Some(keys.insert(self.plain.hash, &self.eviction(*now))?);
            }
            Ok(())
        });
        slot.unwrap_or(Ok(()))
    }

    fn is_full(&self) -> Result<(), TableFull> {
        let is_full = self.with_locked(|Locked { keys, slot, now, .. }| {
            if slot.is_some() {
                return Ok(());
            }
            keys.is_full_for(self.plain.hash, &self.eviction(*now))
        });
        is_full.unwrap_or(Ok(()))
    }

    #[inline]
    fn prepare(&self, reading: &LimitReading, delay: Duration) {
        self.with_locked(|Locked { keys, slot, now, next, .. }| {
            if let Some(slot) = slot.filter(|_| !reading.holds) {
                *next = self.transition().charge(keys.state(slot), reading, *now, delay);
            }
        });
    }

    #[inline]
    fn commit(&self, reading: &LimitReading) -> LimitNumbers {
        let mut locked = self.locked.borrow_mut();
        let Some(Locked { keys, slot: Some(slot), now, at, next, placed }) = &mut *locked else {
            return reading.numbers();
        };
        let transition = self.transition();
        let held = if reading.holds {
            *placed = Some((reading.cost, self.plain.place(keys, *now, reading.cost, self.own.take())));
            reading.held.saturating_add(reading.cost)
        } else {
            let Some(next) = next.take() else { return reading.numbers() };
            let snapshot = if reading.held == 0 && now == at { StateOf::<C>::next_snapshot(&next) } else { None };
            keys.state_mut(*slot).apply(next);
            if let Some(snapshot) = snapshot {
                return reading.numbers_after(self.plain.table.limit.warn_keys(), snapshot, self.plain.hash, *now);
            }
            reading.held
        };
        let snapshot = transition.snapshot(keys.state(*slot), held, *at);
        reading.numbers_after(self.plain.table.limit.warn_keys(), snapshot, self.plain.hash, *now)
    }

    fn take_hold(&self, reading: &LimitReading) -> HeldEntry {
        let placed = self.with_locked(|Locked { keys, placed, .. }| {
            placed.take().or_else(|| {
                // A cost of zero is not held, but its settlement may charge the key.
                let own = self.own.take()?;
                Some((0, keys.hold(self.plain.hash, 0, None, Some(own))))
            })
        });
        let (amount, hold) = placed.flatten().unwrap_or((reading.cost, (0, 0)));
        self.plain.table.entry(self.plain.hash, amount, hold, self.charge_before)
    }
}

/// Ends a hold that nobody has taken: an algorithm has panicked.
impl<C: AlgorithmSelector, Chosen> Drop for LimitPart<'_, C, Chosen> {
    fn drop(&mut self) {
        let Some(Locked { mut keys, placed, .. }) = self.locked.take() else { return };
        match placed {
            Some((amount, hold)) if C::Algorithm::HELD_UNTIL_END => keys.end_request(self.plain.hash, amount, hold),
            Some((amount, (id, _))) => drop(keys.end_hold(self.plain.hash, amount, id)),
            None => {}
        }
    }
}
