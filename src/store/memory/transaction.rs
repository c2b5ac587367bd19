use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

use super::share::{Asked, Look, Needed, Share};
use crate::algorithm::Charge;
use crate::clock::Timestamp;
use crate::decision::{Decision, Standing, Verdict};
use crate::limiter::Receipt;
use crate::sync::Backoff;
use crate::table::Full;

/// Decides over all rows as one: peeks at all, and if each allows it, commits to all.
///
/// An optimistic transaction. It reads every row without a lock; to refuse, it makes sure that all it read held at one
/// moment; to charge, it locks exactly what it read, in the rows' order, or starts again if anything has changed.
///
/// `looks` is room for one look a row.
#[inline]
pub(super) fn acquire<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &Asked<'_, Key, S>,
    receipt: &mut impl Note,
) -> Decision {
    let (mut asked, mut backoff) = (*asked, Backoff::new());
    loop {
        let with_reading = asked.ask.cost == 0;
        let verdict = look(rows, looks, &mut asked, with_reading);
        let asked = &asked;
        if !verdict.is_allowed() || asked.ask.cost == 0 {
            if is_one_moment(rows, looks) {
                if verdict.is_allowed() {
                    receipt.begin(asked.now, Duration::ZERO, 0, rows.len());
                }
                return decide(rows, looks, asked);
            }
        } else {
            let charged = Locks::take(rows, looks).map(|mut locks| {
                locks.place(asked)?;
                locks.charge(asked, delay(verdict), receipt);
                Ok(())
            });
            match charged {
                Some(Ok(())) => return decide(rows, looks, asked),
                Some(Err(NoRoom { row })) => {
                    if let Err(full) = rows[row].make_room(asked, &looks[row]) {
                        return refuse_for(full, asked.now);
                    }
                }
                None => {}
            }
        }
        backoff.wait();
    }
}

/// Refuses a key that has no room.
#[cold]
fn refuse_for(full: Full, now: Timestamp) -> Decision {
    let wait = Timestamp::from_micros(full.until).since(now).max(Duration::from_micros(1));
    Decision::by_policy(now, Verdict::Denied { retry_after: wait })
}

/// Where a charge is noted: in a receipt, or nowhere if nobody wants one.
#[allow(unreachable_pub, reason = "named by a hidden method only")]
pub trait Note {
    fn begin(&mut self, charged_at: Timestamp, delay: Duration, cost: u64, limits: usize);
    /// Until when a limit counts the charge.
    fn note(&mut self, limit: usize, until: impl FnOnce() -> Timestamp);
    /// A limit was not charged.
    fn skip(&mut self, limit: usize);
}

impl Note for () {
    #[inline]
    fn begin(&mut self, _charged_at: Timestamp, _delay: Duration, _cost: u64, _limits: usize) {}

    #[inline]
    fn note(&mut self, _limit: usize, _until: impl FnOnce() -> Timestamp) {}

    #[inline]
    fn skip(&mut self, _limit: usize) {}
}

impl Note for Option<Receipt> {
    #[inline]
    fn begin(&mut self, charged_at: Timestamp, delay: Duration, cost: u64, limits: usize) {
        *self = Some(Receipt::new(charged_at, cost, limits).with_turn(charged_at.after(delay)));
    }

    #[inline]
    fn note(&mut self, limit: usize, until: impl FnOnce() -> Timestamp) {
        if let Some(receipt) = self {
            receipt.until_mut()[limit] = until();
        }
    }

    #[inline]
    fn skip(&mut self, limit: usize) {
        if let Some(receipt) = self {
            receipt.skip(limit);
        }
    }
}

/// What [`acquire`] would decide, charging nothing.
pub(super) fn peek<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let (mut asked, mut backoff) = (*asked, Backoff::new());
    loop {
        let verdict = look(rows, looks, &mut asked, true);
        let asked = &asked;
        if is_one_moment(rows, looks) {
            let is_charged = verdict.is_allowed() && asked.ask.cost > 0;
            let full =
                rows.iter().zip(&*looks).filter(|_| is_charged).find_map(|(row, look)| row.is_full_for(look).err());
            return full.map_or_else(|| decide(rows, looks, asked), |full| refuse_for(full, asked.now));
        }
        backoff.wait();
    }
}

/// Settles a charge, row by row.
pub(super) fn settle<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    asked: &Asked<'_, Key, S>,
    receipt: &Receipt,
    actual: u64,
) -> Result<(), Full> {
    let mut settled = Ok(());
    let charged = rows.iter().zip(receipt.until()).enumerate().filter(|(index, _)| receipt.is_for(*index));
    for (_, (row, &until)) in charged {
        let charge = Charge { at: receipt.charged_at(), turn: receipt.turn(), cost: receipt.cost(), until };
        settled = settled.and(row.settle(asked, charge, actual));
    }
    settled
}

#[inline]
fn look<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &mut Asked<'_, Key, S>,
    with_reading: bool,
) -> Verdict {
    let needed = match (rows.len() > 1, with_reading) {
        (true, _) => Needed::Together,
        (false, true) => Needed::Reading,
        (false, false) => Needed::Refusal,
    };
    look_in_time(rows, looks, asked, needed);
    if needed == Needed::Together && !promise_turns(looks) {
        for look in &mut *looks {
            (look.verdict, look.promises_turns) = (look.at_once, false);
        }
    }
    enforced(looks).fold(Verdict::Allowed, |verdict, look| verdict.and(look.verdict))
}

/// Looks at all rows, not so long after the clock was read that what others have charged meanwhile seems to be from a clock that
/// was ahead: a thread can be descheduled between the two.
#[inline]
fn look_in_time<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &mut Asked<'_, Key, S>,
    needed: Needed,
) {
    // Where a limit remembers for microseconds only, no look may be fast enough.
    const MOST_TRIES: u32 = 100;
    for _ in 0..MOST_TRIES {
        for (row, look) in rows.iter().zip(&mut *looks) {
            row.look(asked, needed, look);
        }
        let Some(remembered) = looks.iter().filter_map(|look| look.ahead_of).min() else { return };
        let now = asked.read_clock();
        if now.since(asked.now) <= remembered {
            return;
        }
        asked.now = now;
    }
}

fn enforced(looks: &[Look]) -> impl Iterator<Item = &Look> + Clone {
    looks.iter().filter(|look| !look.shadow)
}

/// Whether several limits promise the turn that is the latest of theirs.
///
/// Each must be able to, and owe at least until then. One that owes less would have room before, and to charge it at the
/// turn would keep that from everybody else. What is owed and the turns come nearer alike, so the answer stays the same
/// while nobody is charged, and a refusal's time is exact under either.
fn promise_turns(looks: &[Look]) -> bool {
    let turn = enforced(looks).fold(Verdict::Allowed, |turn, look| turn.and(look.at_once));
    match turn {
        Verdict::Denied { retry_after: turn } => {
            enforced(looks).all(|look| look.promises_turns && look.reading.figures().reset >= turn)
        }
        _ => enforced(looks).all(|look| look.promises_turns),
    }
}

/// Whether all that was read held at one moment. What one row read does by itself.
fn is_one_moment<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(rows: &[&R], looks: &[Look]) -> bool {
    rows.len() == 1 || rows.iter().zip(looks).all(|(row, look)| row.is_current(look))
}

pub(super) fn delay(verdict: Verdict) -> Duration {
    if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO }
}

/// The decision that the looks add up to.
#[inline]
fn decide<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &[Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    match (rows, looks) {
        ([row], [look]) if !look.shadow => Decision::by_store(asked.now, look.promises_turns, standing(*row, look)),
        _ => decide_several(rows, looks, asked),
    }
}

fn decide_several<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &[Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let promises_turns = enforced(looks).all(|look| look.promises_turns);
    let standings = rows.iter().zip(looks).map(|(row, look)| standing(*row, look));
    let shadows = looks.iter().any(|look| look.shadow);
    let list_all = asked.ask.lists_all(shadows, || looks.iter().any(|look| !look.verdict.is_allowed()));
    Decision::of_limits(asked.now, list_all, standings).with_turns(promises_turns)
}

#[inline]
fn standing<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(row: &R, look: &Look) -> Standing {
    Standing::new(row.name().clone(), look.verdict, look.reading, look.shadow)
}

/// The locks on all that the looks read, given back when dropped: also when a user's algorithm panics.
struct Locks<'a, Key: ?Sized, S, R: Share<Key, S> + ?Sized> {
    rows: &'a [&'a R],
    looks: &'a mut [Look],
    key: PhantomData<fn(&Key, &S)>,
}

/// A row whose table is full.
struct NoRoom {
    row: usize,
}

impl<'a, Key: ?Sized, S, R: Share<Key, S> + ?Sized> Locks<'a, Key, S, R> {
    /// `None`, with nothing locked, if anything has changed since the looks.
    #[inline]
    fn take(rows: &'a [&'a R], looks: &'a mut [Look]) -> Option<Self> {
        for (index, (row, look)) in rows.iter().zip(&*looks).enumerate() {
            if !row.lock(look) {
                for (row, look) in rows.iter().zip(&*looks).take(index) {
                    row.unlock_unchanged(look);
                }
                return None;
            }
        }
        Some(Self { rows, looks, key: PhantomData })
    }

    /// Finds a place for every row's key.
    ///
    /// A place made for nothing, as a later row has none, is an idle slot: no harm.
    #[inline]
    fn place(&mut self, asked: &Asked<'_, Key, S>) -> Result<(), NoRoom> {
        for (index, (row, look)) in self.rows.iter().zip(&mut *self.looks).enumerate() {
            if look.is_charged() {
                look.place = row.place(asked, look);
                if look.place.is_none() {
                    return Err(NoRoom { row: index });
                }
            }
        }
        Ok(())
    }

    /// Charges every row. Leaves in the looks how the key stands then.
    #[inline]
    fn charge(&mut self, asked: &Asked<'_, Key, S>, delay: Duration, receipt: &mut impl Note) {
        receipt.begin(asked.now, delay, asked.ask.cost, self.rows.len());
        for (index, (row, look)) in self.rows.iter().zip(&mut *self.looks).enumerate() {
            if look.is_charged() {
                let until = row.commit(asked, look, delay);
                receipt.note(index, || until);
            } else {
                receipt.skip(index);
            }
        }
    }
}

impl<Key: ?Sized, S, R: Share<Key, S> + ?Sized> Drop for Locks<'_, Key, S, R> {
    #[inline]
    fn drop(&mut self) {
        for (row, look) in self.rows.iter().zip(&*self.looks) {
            row.unlock(look);
        }
    }
}
