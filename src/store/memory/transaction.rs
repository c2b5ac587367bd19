use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

use super::share::{Asked, HeldLimit, Look, Needed, Share};
use crate::clock::Timestamp;
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::sync::Backoff;
use crate::table::Full;

/// Decides over all rows as one: peeks at all, and if each allows it, commits to all, or holds the cost on all.
///
/// An optimistic transaction. It reads every row without a lock; to refuse, it makes sure that all it read held at one
/// moment; to charge, it locks exactly what it read, in the rows' order, or starts again if anything has changed.
///
/// `looks` is room for one look a row. Returns the limits too on which the cost of an allowed request is held.
#[inline]
pub(super) fn acquire<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &Asked<'_, Key, S>,
) -> (Decision, Vec<HeldLimit>) {
    let decision = charge(rows, looks, asked);
    let mut held = Vec::new();
    if asked.ask.hold && decision.is_allowed() {
        let charged = rows.iter().zip(looks).filter(|(_, look)| look.is_charged());
        held.extend(charged.map(|(row, look)| row.held_limit(asked, look)));
    }
    (decision, held)
}

#[inline]
fn charge<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let (mut asked, mut backoff) = (*asked, Backoff::new());
    loop {
        let with_reading = asked.ask.cost == 0;
        let verdict = look(rows, looks, &mut asked, with_reading);
        let asked = &asked;
        if !verdict.is_allowed() || asked.ask.cost == 0 {
            if is_one_moment(rows, looks) {
                return decide(rows, looks, asked);
            }
        } else {
            let charged = Locks::take(rows, looks).map(|mut locks| {
                locks.place(asked)?;
                locks.charge(asked, delay(verdict));
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
    let wait = Timestamp::from_micros(full.until).saturating_since(now);
    // Costs are held on the keys in its place: nobody knows for how long.
    let wait = if wait.is_zero() { Duration::from_secs(1) } else { wait };
    Decision::by_policy(now, Verdict::Denied { retry_after: wait })
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

#[inline]
fn look<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &mut Asked<'_, Key, S>,
    with_reading: bool,
) -> Verdict {
    let needed = match (rows.len() > 1, with_reading) {
        (true, _) => Needed::Together,
        (false, true) => Needed::LazySnapshot,
        (false, false) => Needed::Rejection,
    };
    look_in_time(rows, looks, asked, needed);
    if needed == Needed::Together
        && !asked.ask.hold
        && asked.ask.max_delay.is_none_or(|most| !most.is_zero())
        && let Some(blocked) = enforced(looks).map(|look| look.blocked).max().filter(|blocked| !blocked.is_zero())
    {
        return look_beyond_blocks(rows, looks, asked, blocked);
    }
    if needed == Needed::Together && !promise_turns(looks) {
        for look in &mut *looks {
            (look.verdict, look.supports_scheduling) = (look.at_once, false);
        }
    }
    enforced(looks).fold(Verdict::Allowed, |verdict, look| verdict.stricter_of(look.verdict))
}

/// Decides for a caller who would wait, on a key that is blocked for so long: as of the end of the block.
///
/// Before that nothing is allowed. From then on starts may be scheduled again, so that what each limit says now to a caller
/// who would not wait can be too long.
#[cold]
fn look_beyond_blocks<Key: ?Sized, S: BuildHasher, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &mut [Look],
    asked: &Asked<'_, Key, S>,
    blocked: Duration,
) -> Verdict {
    let later = Asked { now: asked.now.saturating_add(blocked), ..*asked };
    let mut beyond = vec![Look::BLANK; rows.len()];
    for (row, look) in rows.iter().zip(&mut beyond) {
        row.look(&later, Needed::Together, look);
    }
    let promises = promise_turns(&beyond);
    for (look, beyond) in looks.iter_mut().zip(beyond) {
        let verdict = if promises { beyond.verdict } else { beyond.at_once };
        let verdict = match verdict {
            Verdict::Denied { retry_after } => Verdict::Denied { retry_after: retry_after + blocked },
            Verdict::ExceedsLimit => Verdict::ExceedsLimit,
            _ if look.blocked.is_zero() => Verdict::Allowed,
            _ => Verdict::Denied { retry_after: look.blocked },
        };
        if !look.shadow {
            look.verdict = verdict;
        }
        // What is validated is what was read last.
        look.spot = beyond.spot;
        look.supports_scheduling = false;
    }
    enforced(looks).fold(Verdict::Allowed, |verdict, look| verdict.stricter_of(look.verdict))
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
    const MAX_TRIES: u32 = 100;
    for _ in 0..MAX_TRIES {
        for (row, look) in rows.iter().zip(&mut *looks) {
            row.look(asked, needed, look);
        }
        let Some(remembered) = looks.iter().filter_map(|look| look.ahead_of).min() else { return };
        let now = asked.read_clock();
        if now.saturating_since(asked.now) <= remembered {
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
    let turn = enforced(looks).fold(Verdict::Allowed, |turn, look| turn.stricter_of(look.at_once));
    match turn {
        Verdict::Denied { retry_after: turn } => {
            enforced(looks).all(|look| look.supports_scheduling && look.reading.compute().reset >= turn)
        }
        _ => enforced(looks).all(|look| look.supports_scheduling),
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
    let decision = match (rows, looks) {
        ([row], [look]) if !look.shadow => {
            Decision::from_store(asked.now, look.supports_scheduling, standing(*row, look))
        }
        _ => decide_several(rows, looks, asked),
    };
    let is_estimate = enforced(looks).any(|look| look.held > 0 && !look.verdict.is_allowed());
    decision.with_estimate(is_estimate)
}

fn decide_several<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(
    rows: &[&R],
    looks: &[Look],
    asked: &Asked<'_, Key, S>,
) -> Decision {
    let supports_scheduling = enforced(looks).all(|look| look.supports_scheduling);
    let standings = rows.iter().zip(looks).map(|(row, look)| standing(*row, look));
    let shadows = looks.iter().any(|look| look.shadow);
    let list_all = asked.ask.lists_all(shadows, || looks.iter().any(|look| !look.verdict.is_allowed()));
    Decision::combine(asked.now, list_all, standings).with_scheduling(supports_scheduling)
}

#[inline]
fn standing<Key: ?Sized, S, R: Share<Key, S> + ?Sized>(row: &R, look: &Look) -> LimitStatus {
    LimitStatus::from_verdict(row.name().clone(), look.verdict, look.reading, look.shadow)
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

    /// Charges every row, or holds the cost on it. Leaves in the looks how the key stands then.
    #[inline]
    fn charge(&mut self, asked: &Asked<'_, Key, S>, delay: Duration) {
        for (row, look) in self.rows.iter().zip(&mut *self.looks).filter(|(_, look)| look.is_charged()) {
            if asked.ask.hold {
                row.hold(asked, look);
            } else {
                // A shadow counts the request at the start that it would have scheduled.
                let delay = if look.shadow { self::delay(look.verdict) } else { delay };
                row.charge(asked, look, delay);
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
