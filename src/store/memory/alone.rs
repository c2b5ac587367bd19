//! The common cases on a straight way: one limit by itself, and several that all let through at once.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::row::{Row, is_far_ahead};
use super::share::{Asked, HeldLimit, Look};
use super::transaction::{self, delay};
use crate::algorithm::{Algorithm, AtOnce, State};
use crate::clock::Timestamp;
use crate::decision::{Decision, LimitStatus, Name};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::sync::Backoff;
use crate::table::{LockedNear, Missed, Near, NotInserted};

/// Decides as [`transaction::acquire`] does over one row, but leaves what is out of the ordinary: then nothing was charged, and nothing is
/// said but whether to look there once more.
///
/// In one piece, without a loop and with nothing lent to a function that is not inlined: so all that is read stays in registers, and
/// the decision is written once, where the caller wants it.
#[inline(always)]
pub(super) fn at_once<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>) -> Result<Decision, Missed>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    let &Asked { hasher, key, now, ask, .. } = asked;
    if !C::Algorithm::DECIDES_AT_ONCE || !row.is_plain(asked.now) || ask.hold {
        return Err(Missed::Busy);
    }
    let near = row.table.read_near(row.hash_of(key, hasher))?;
    let chosen = row.limit.algorithm().select(key);
    let algorithm: &C::Algorithm = chosen.borrow();
    let (wait, state) = match algorithm.try_at_once(&near.state, now, ask) {
        AtOnce::Charged(state) => {
            near.replace(state.clone())?;
            (0, state)
        }
        AtOnce::Denied(wait) => (wait, near.state.clone()),
        AtOnce::Unsaid => return Err(Missed::Busy),
    };
    Ok(decision_at_once(row, algorithm, &state, now, wait))
}

/// Of a state that was charged, or that refuses for so many microseconds.
#[inline(always)]
fn decision_at_once<A: Algorithm, C: AlgorithmSelector, P>(
    row: &Row<C, P>,
    algorithm: &A,
    state: &A::State,
    now: Timestamp,
    wait: u64,
) -> Decision {
    let standing = LimitStatus::from_wait(row.limit.name_handle().clone(), wait, algorithm.reading_at_once(state, now));
    Decision::from_store(now, algorithm.supports_scheduling(), standing)
}

/// Decides in any case.
#[inline(never)]
pub(super) fn at_length<Key, C, P, S>(
    row: &Row<C, P>,
    asked: Asked<'_, Key, S>,
    missed: Missed,
) -> (Decision, Vec<HeldLimit>)
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    if asked.ask.hold {
        // The other ways charge: only the transaction holds.
        return transaction::acquire(&[row], &mut [Look::BLANK], &asked);
    }
    if missed == Missed::Absent
        && let Some(decision) = acquire_new(row, &asked)
    {
        return (decision, Vec::new());
    }
    let charges = asked.ask.cost > 0;
    let (mut is_plain, mut backoff) = (missed == Missed::Busy && charges && row.is_plain(asked.now), Backoff::new());
    while is_plain {
        match acquire_there(row, &asked) {
            Ok(decision) => return (decision, Vec::new()),
            Err(Missed::Busy) => backoff.wait(),
            Err(Missed::Absent) => is_plain = false,
        }
    }
    transaction::acquire(&[row], &mut [Look::BLANK], &asked)
}

/// For a new key that passes at once. `None` leaves what is out of the ordinary: then nothing was charged.
#[inline]
fn acquire_new<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>) -> Option<Decision>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    if !row.is_plain(asked.now) || row.table.has_estates() {
        return None;
    }
    let &Asked { now, ask, .. } = asked;
    let chosen = row.limit.algorithm().select(asked.key);
    let algorithm: &C::Algorithm = chosen.borrow();
    let AtOnce::Charged(state) = algorithm.try_at_once(&algorithm.new_at_once()?, now, ask) else { return None };
    let hash = row.hash(asked);
    loop {
        let nowhere = row.table.read_nowhere(hash, now.as_micros())?;
        match nowhere.insert(&state) {
            Ok(()) => break,
            Err(NotInserted::NoRoom) => row.make_room_at(&nowhere.spot, now, algorithm).ok()?,
            Err(NotInserted::Late) => return None,
        }
    }
    Some(decision_at_once(row, algorithm, &state, now, 0))
}

/// For a key that is there, whatever is asked.
#[inline]
fn acquire_there<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>) -> Result<Decision, Missed>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    let near = row.table.read_near(row.hash(asked))?;
    let chosen = row.limit.algorithm().select(asked.key);
    let algorithm: &C::Algorithm = chosen.borrow();
    let now = asked.now;
    if is_far_ahead(near.idle_at(), now, algorithm) {
        // The transaction reads the clock anew.
        return Err(Missed::Absent);
    }
    let verdict = algorithm.peek(&near.state, now, asked.ask);
    let reading = if verdict.is_allowed() {
        let (delay, mut locked) = (delay(verdict), near.lock()?);
        algorithm.charge(locked.edit(), now, delay, asked.ask.cost);
        // As the next one to ask will see it.
        algorithm.snapshot(locked.edit(), now)
    } else {
        algorithm.snapshot(&near.state, now)
    };
    let standing = LimitStatus::from_verdict(row.limit.name_handle().clone(), verdict, reading, false);
    Ok(Decision::from_store(now, algorithm.supports_scheduling(), standing))
}

/// A limit of several that would let the request through at once.
pub(super) struct Passing<'a, Selected, A: Algorithm> {
    near: Near<'a, <A::State as State>::AtomicState>,
    charged: A::State,
    name: &'a Name,
    chosen: Selected,
}

impl<'a, Selected: Borrow<A>, A: Algorithm> Passing<'a, Selected, A> {
    /// `None` says nothing.
    #[inline(always)]
    pub(super) fn of<Key, C, P, S>(row: &'a Row<C, P>, asked: &Asked<'_, Key, S>) -> Option<Self>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key, Selected<'a> = Selected> + AlgorithmSelector<Algorithm = A> + Send + Sync + 'static,
        P: SubKeyOf<Key> + Send + Sync + 'static,
        P::SubKey: Hash,
        S: BuildHasher,
    {
        if !row.is_plain(asked.now) {
            return None;
        }
        let near = row.table.read_near(row.hash(asked)).ok()?;
        let chosen = row.limit.algorithm().select(asked.key);
        match chosen.borrow().try_at_once(&near.state, asked.now, asked.ask) {
            AtOnce::Charged(charged) => Some(Self { near, charged, name: row.limit.name_handle(), chosen }),
            AtOnce::Denied(_) | AtOnce::Unsaid => None,
        }
    }

    /// Takes the lock, unless anything has changed since.
    #[inline(always)]
    pub(super) fn lock(self) -> Option<Charging<'a, Selected, A>> {
        let Self { near, charged, name, chosen } = self;
        Some(Charging { locked: near.lock().ok()?, said: Said { charged, name, chosen } })
    }
}

/// One of them, locked. Nothing is charged before all are.
pub(super) struct Charging<'a, Selected, A: Algorithm> {
    locked: LockedNear<'a, <A::State as State>::AtomicState>,
    said: Said<'a, Selected, A>,
}

impl<'a, Selected: Borrow<A>, A: Algorithm> Charging<'a, Selected, A> {
    /// Charges it. It stays locked until the first half is dropped.
    #[inline(always)]
    pub(super) fn charge(self) -> (LockedNear<'a, <A::State as State>::AtomicState>, Said<'a, Selected, A>) {
        let Self { mut locked, said } = self;
        **locked.edit() = said.charged.clone();
        (locked, said)
    }
}

/// What a limit says that lets through at once. Of several only the one that speaks is asked for more than what remains.
pub(super) struct Said<'a, Selected, A: Algorithm> {
    charged: A::State,
    name: &'a Name,
    chosen: Selected,
}

impl<Selected: Borrow<A>, A: Algorithm> Said<'_, Selected, A> {
    #[inline(always)]
    pub(super) fn remaining(&self, now: Timestamp) -> u64 {
        self.chosen.borrow().remaining_at_once(&self.charged, now)
    }

    #[inline(always)]
    pub(super) fn supports_scheduling(&self) -> bool {
        self.chosen.borrow().supports_scheduling()
    }

    #[inline(always)]
    pub(super) fn standing(&self, now: Timestamp) -> LimitStatus {
        LimitStatus::from_wait(self.name.clone(), 0, self.chosen.borrow().reading_at_once(&self.charged, now))
    }
}
