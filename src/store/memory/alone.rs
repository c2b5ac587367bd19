//! One limit by itself: the common case, on a straight way.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::row::Row;
use super::share::{Asked, Look};
use super::transaction::{self, Note, delay};
use crate::algorithm::{Algorithm, AtOnce, State};
use crate::clock::Timestamp;
use crate::decision::{Decision, Reading, Standing, Verdict};
use crate::limit::{Choose, PartOf};
use crate::table::Home;

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
        AtOnce::Charged(state, reading) => {
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
