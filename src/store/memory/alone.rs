//! The common cases on a straight way: one limit by itself, and several that all let through at once.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::row::Row;
use super::share::{Asked, Look};
use super::transaction::{self, Note, delay};
use crate::algorithm::{Algorithm, AtOnce, State};
use crate::clock::Timestamp;
use crate::decision::{Decision, Name, Reading, Standing, Verdict};
use crate::limit::{Choose, Chooser, PartOf};
use crate::table::{Home, LockedHome};

/// Decides as [`transaction::acquire`] does over one row, to which it leaves what is out of the ordinary: a key that is not in
/// its first set, a lost race, a block, a shadow.
#[inline]
pub(super) fn acquire<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>, receipt: &mut impl Note) -> Decision
where
    Key: ?Sized,
    C: Choose<Key> + Send + Sync + 'static,
    P: PartOf<Key> + Send + Sync + 'static,
    P::Part: Hash,
    S: BuildHasher,
{
    let is_plain = row.is_plain() && asked.ask.cost > 0;
    let decided = if is_plain { try_acquire(row, asked, receipt) } else { None };
    match decided {
        Some(decision) => decision,
        None => acquire_at_length(row, asked, receipt),
    }
}

#[cold]
#[inline(never)]
fn acquire_at_length<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>, receipt: &mut impl Note) -> Decision
where
    Key: ?Sized,
    C: Choose<Key> + Send + Sync + 'static,
    P: PartOf<Key> + Send + Sync + 'static,
    P::Part: Hash,
    S: BuildHasher,
{
    transaction::acquire(&[row], &mut [Look::BLANK], asked, receipt)
}

#[inline(always)]
fn try_acquire<Key, C, P, S>(row: &Row<C, P>, asked: &Asked<'_, Key, S>, receipt: &mut impl Note) -> Option<Decision>
where
    Key: ?Sized,
    C: Choose<Key> + Send + Sync + 'static,
    P: PartOf<Key> + Send + Sync + 'static,
    P::Part: Hash,
    S: BuildHasher,
{
    let home = row.table.read_home(row.hash(asked))?;
    let chosen = row.limit.algorithm().choose(asked.key);
    let algorithm: &C::Algorithm = chosen.borrow();
    let (now, ask) = (asked.now, asked.ask);
    let (verdict, reading) = match algorithm.try_at_once(&home.state, now, ask) {
        AtOnce::Charged(state, reading, _) => {
            let mut locked = home.lock()?;
            **locked.edit() = state;
            receipt.begin(now, Duration::ZERO, ask.cost, 1);
            receipt.note(0, || Timestamp::from_micros(locked.fresh_at()));
            (Verdict::Allowed, reading)
        }
        AtOnce::Denied(wait, reading) => (Verdict::Denied { retry_after: Duration::from_micros(wait) }, reading),
        AtOnce::Unsaid => peek_and_commit(algorithm, home, asked, receipt)?,
    };
    let standing = Standing::new(row.limit.shared_name().clone(), verdict, reading, false);
    Some(Decision::by_store(now, algorithm.promises_turns(), standing))
}

/// Out of the way of those who decide at once.
#[inline(never)]
fn peek_and_commit<Key, A, S>(
    algorithm: &A,
    home: Home<'_, <A::State as State>::Cell>,
    asked: &Asked<'_, Key, S>,
    receipt: &mut impl Note,
) -> Option<(Verdict, Reading)>
where
    Key: ?Sized,
    A: Algorithm,
{
    let now = asked.now;
    let verdict = algorithm.peek(&home.state, now, asked.ask);
    if !verdict.is_allowed() {
        return Some((verdict, algorithm.reading(&home.state, now)));
    }
    let (delay, mut locked) = (delay(verdict), home.lock()?);
    algorithm.commit(locked.edit(), now, delay, asked.ask.cost);
    // As the next one to ask will see it.
    let reading = algorithm.reading(locked.edit(), now);
    receipt.begin(now, delay, asked.ask.cost, 1);
    receipt.note(0, || Timestamp::from_micros(locked.fresh_at()));
    Some((verdict, reading))
}

/// A limit of several that would let the request through at once.
pub(super) struct Passing<'a, A: Algorithm> {
    home: Home<'a, <A::State as State>::Cell>,
    charged: A::State,
    name: &'a Name,
    reading: Reading,
    promises_turns: bool,
    remaining: u64,
}

impl<'a, A: Algorithm> Passing<'a, A> {
    /// `None` says nothing.
    #[inline(always)]
    pub(super) fn of<Key, C, P, S>(row: &'a Row<C, P>, asked: &Asked<'_, Key, S>) -> Option<Self>
    where
        Key: ?Sized,
        C: Choose<Key> + Chooser<Algorithm = A> + Send + Sync + 'static,
        P: PartOf<Key> + Send + Sync + 'static,
        P::Part: Hash,
        S: BuildHasher,
    {
        if !row.is_plain() {
            return None;
        }
        let home = row.table.read_home(row.hash(asked))?;
        let chosen = row.limit.algorithm().choose(asked.key);
        let algorithm: &A = chosen.borrow();
        match algorithm.try_at_once(&home.state, asked.now, asked.ask) {
            AtOnce::Charged(charged, reading, remaining) => {
                let (name, promises_turns) = (row.limit.shared_name(), algorithm.promises_turns());
                Some(Self { home, charged, name, reading, promises_turns, remaining })
            }
            AtOnce::Denied(..) | AtOnce::Unsaid => None,
        }
    }

    /// Takes the lock, unless anything has changed since.
    #[inline(always)]
    pub(super) fn lock(self) -> Option<Charging<'a, A>> {
        let Self { home, charged, name, reading, promises_turns, remaining } = self;
        let said = Said { name, reading, promises_turns, remaining };
        Some(Charging { locked: home.lock()?, charged, said })
    }
}

/// One of them, locked. Nothing is charged before all are.
pub(super) struct Charging<'a, A: Algorithm> {
    locked: LockedHome<'a, <A::State as State>::Cell>,
    charged: A::State,
    said: Said<'a>,
}

impl<'a, A: Algorithm> Charging<'a, A> {
    /// Charges it. It stays locked until the other half is dropped.
    #[inline(always)]
    pub(super) fn charge(
        self,
        limit: usize,
        receipt: &mut impl Note,
    ) -> (LockedHome<'a, <A::State as State>::Cell>, Said<'a>) {
        let Self { mut locked, charged, said } = self;
        **locked.edit() = charged;
        receipt.note(limit, || Timestamp::from_micros(locked.fresh_at()));
        (locked, said)
    }
}

/// What a limit says that lets through at once.
pub(super) struct Said<'a> {
    name: &'a Name,
    reading: Reading,
    promises_turns: bool,
    remaining: u64,
}

/// The decision of several limits that have let through at once: the one with the least remaining speaks, the first of equals.
#[inline(always)]
pub(super) fn pass<const N: usize>(now: Timestamp, said: [Said<'_>; N]) -> Option<Decision> {
    let promises_turns = said.iter().all(|said| said.promises_turns);
    let speaks = said.into_iter().min_by_key(|said| said.remaining)?;
    let standing = Standing::new(speaks.name.clone(), Verdict::Allowed, speaks.reading, false);
    Some(Decision::by_store(now, promises_turns, standing))
}
