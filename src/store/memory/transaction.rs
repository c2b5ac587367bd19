use std::hash::BuildHasher;
use std::time::Duration;

use super::share::{Asked, Look, Share};
use crate::algorithm::Charge;
use crate::clock::Timestamp;
use crate::decision::{Decision, Reading, Standing, Verdict};
use crate::limiter::{Outcome, Receipt};
use crate::sync::Backoff;

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
    mut asked: Asked<'_, Key, S>,
) -> Outcome {
    let mut backoff = Backoff::new();
    loop {
        let with_reading = rows.len() > 1 || asked.ask.cost == 0;
        let verdict = look(rows, looks, &mut asked, with_reading);
        if !verdict.is_allowed() || asked.ask.cost == 0 {
            if is_one_moment(rows, looks) {
                let decision = decide(rows, looks, &asked);
                let receipt = verdict.is_allowed().then(|| Receipt::new(asked.now, 0, rows.len()));
                return Outcome { decision, receipt };
            }
        } else {
            let charged = Locks::take(rows, looks).map(|mut locks| charge(&mut locks, &asked, delay(verdict)));
            match charged {
                Some(Ok(outcome)) => return outcome,
                Some(Err(row)) => rows[row].make_room(&looks[row]),
                None => {}
            }
        }
        backoff.wait();
    }
}

/// What [`acquire`] would decide, charging nothing.
pub(super) fn peek<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    mut asked: Asked<'_, Key, S>,
) -> Decision {
    let mut backoff = Backoff::new();
    loop {
        look(rows, looks, &mut asked, true);
        if is_one_moment(rows, looks) {
            return decide(rows, looks, &asked);
        }
        backoff.wait();
    }
}

/// Notes in a receipt that a shadow would have refused, and was not charged.
const NOT_CHARGED: Timestamp = Timestamp::EPOCH;

/// Settles a charge, row by row.
pub(super) fn settle<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    asked: &Asked<'_, Key, S>,
    receipt: &Receipt,
    actual: u64,
) {
    for (row, &until) in rows.iter().zip(receipt.until()) {
        if until == NOT_CHARGED {
            continue;
        }
        row.settle(asked, Charge { at: receipt.charged_at(), cost: receipt.cost(), until }, actual);
    }
}

#[inline]
fn look<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &mut Asked<'_, Key, S>,
    with_reading: bool,
) -> Verdict {
    loop {
        let mut verdict = Verdict::Allowed;
        let mut all_promise = true;
        for (row, look) in rows.iter().zip(&mut *looks) {
            *look = row.look(asked, with_reading);
            if !look.shadow {
                verdict = verdict.and(look.verdict);
                all_promise &= look.promises_turns;
            }
        }
        let delays = rows.len() > 1 && asked.ask.max_delay != Some(Duration::ZERO);
        if all_promise || !delays {
            return verdict;
        }
        // A later turn can be promised by all or by none: what one promises, another might not have left by then.
        asked.ask.max_delay = Some(Duration::ZERO);
    }
}

/// Whether all that was read held at one moment. What one row read does by itself.
fn is_one_moment<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(rows: &[&R], looks: &[Look]) -> bool {
    rows.len() == 1 || rows.iter().zip(looks).all(|(row, look)| row.is_current(look))
}

fn delay(verdict: Verdict) -> Duration {
    if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO }
}

/// The decision that the looks add up to.
#[inline]
fn decide<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &[Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let standings = rows.iter().zip(looks).filter_map(|(row, look)| Some(standing(*row, look, look.reading?)));
    sum_up(looks, standings, asked)
}

#[inline]
fn standing<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(row: &R, look: &Look, reading: Reading) -> Standing {
    Standing::new(row.name().clone(), look.verdict, reading).in_shadow(look.shadow)
}

/// Under the locks: charges every row, or returns the one that has no room for its key.
#[inline]
fn charge<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    locks: &mut Locks<'_, Key, S, R>,
    asked: &Asked<'_, Key, S>,
    delay: Duration,
) -> Result<Outcome, usize> {
    // A place made for nothing, as a later row has none, is an idle slot: no harm.
    for (index, (row, look)) in locks.rows.iter().zip(&mut *locks.looks).enumerate() {
        if look.is_charged() {
            look.place = Some(row.place(look).ok_or(index)?);
        }
    }
    let mut receipt = Receipt::new(asked.now, asked.ask.cost, locks.rows.len());
    let untils = receipt.until_mut();
    let standings = locks.rows.iter().zip(&*locks.looks).zip(untils).filter_map(|((row, look), until)| {
        if !look.is_charged() {
            *until = NOT_CHARGED;
            return Some(standing(*row, look, look.reading?));
        }
        let (reading, charged_until) = row.commit(asked, look, look.place?, delay);
        *until = charged_until;
        Some(standing(*row, look, reading))
    });
    let decision = sum_up(locks.looks, standings, asked);
    Ok(Outcome { decision, receipt: Some(receipt) })
}

/// One decision from the standings of all rows.
#[inline]
fn sum_up<Key: ?Sized, S>(
    looks: &[Look],
    mut standings: impl Iterator<Item = Standing>,
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let promises_turns = looks.iter().all(|look| look.promises_turns);
    let shadows = looks.iter().any(|look| look.shadow);
    let decision = if shadows || (looks.len() > 1 && asked.ask.every_limit) {
        Decision::every(asked.now, standings.collect())
    } else if let Some(first) = standings.next() {
        let mut decision = Decision::one(asked.now, first);
        standings.for_each(|standing| decision.add(standing));
        decision
    } else {
        Decision::every(asked.now, Vec::new())
    };
    decision.with_turns(promises_turns)
}

/// The locks on all that the looks read, given back when dropped: also when a user's algorithm panics.
struct Locks<'a, Key: ?Sized, S, R: Share<Key, S> + ?Sized> {
    rows: &'a [&'a R],
    looks: &'a mut [Look],
    key: std::marker::PhantomData<fn(&Key, &S)>,
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
        Some(Self { rows, looks, key: std::marker::PhantomData })
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
