//! What comes back of a batch: see `driver.lua`. Rust replays what the script has done, to work out the figures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::order::{Operation, Order, Shape, Steps};
use super::row::RowInfo;
use super::trade::{Answer, Done};
use super::twin::Twin;
use crate::algorithm::StateEncoding;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, LimitStatus, Verdict};
use crate::error::Error;

/// A key's state, as it is followed from order to order.
pub(super) struct Followed {
    held: u64,
    /// `None` after an algorithm panicked on it.
    numbers: Option<Vec<u64>>,
}

/// The reply's numbers, one after the other: see `driver.lua`.
pub(super) struct Reply<'a> {
    uses_fast_path: bool,
    /// How many holds have expired.
    pub(super) expired: usize,
    says: std::slice::ChunksExact<'a, u8>,
}

impl<'a> Reply<'a> {
    /// The time, the numbers, and what each key held.
    pub(super) fn of(value: &'a Value, keys: usize) -> Option<(Timestamp, Self, Vec<Followed>)> {
        let Value::BulkString(bytes) = value else { return None };
        let (head, rest) = bytes.split_at_checked(14)?;
        let now = unsigned(read_double(head.get(..8)?)?)?;
        let kind = read_u16(head.get(8..10)?)?;
        let length = read_u16(head.get(10..12)?)?;
        if read_u16(head.get(12..14)?)? != keys {
            return None;
        }
        let (says, rest) = rest.split_at_checked(length * 8)?;
        let (lengths, mut values) = rest.split_at_checked(keys * 2)?;
        let mut followed = Vec::with_capacity(keys);
        for length in lengths.chunks_exact(2) {
            let length = read_u16(length)?;
            let (value, others) = values.split_at_checked(length)?;
            values = others;
            let mut numbers = value.chunks_exact(8).map(|number| read_double(number).and_then(unsigned));
            // A byte more than numbers have says that what is held comes first.
            let held = if length % 8 == 1 { numbers.next()?? } else { 0 };
            followed.push(Followed { held, numbers: Some(numbers.collect::<Option<Vec<u64>>>()?) });
        }
        let reply = Self { uses_fast_path: kind == 1, expired: kind / 2, says: says.chunks_exact(8) };
        Some((Timestamp::from_micros(now), reply, followed))
    }

    /// The next number. What is none fails only the order it is for: see [`Told::NONE`].
    fn signed(&mut self) -> Option<i64> {
        Some(read_double(self.says.next()?).unwrap_or(Told::NONE))
    }
}

fn read_u16(bytes: &[u8]) -> Option<usize> {
    bytes.try_into().ok().map(u16::from_le_bytes).map(usize::from)
}

#[allow(clippy::cast_possible_truncation, reason = "whole numbers of at most 2^53")]
fn read_double(bytes: &[u8]) -> Option<i64> {
    let double = f64::from_le_bytes(bytes.try_into().ok()?);
    double.is_finite().then_some(double as i64)
}

fn unsigned(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

/// What the script says of one decision.
struct Told {
    says: Vec<i64>,
    promises_none: bool,
    views: Vec<[u64; 3]>,
}

impl Told {
    const BAD: i64 = -(1 << 53);
    /// Of a hold: the server does not know the session.
    const EXPIRED: i64 = 1 - (1 << 53);
    /// Of a hold: there is no room for one more session.
    const FULL: i64 = 2 - (1 << 53);
    /// Of a hold: the algorithm's script can't.
    const UNSUPPORTED: i64 = 3 - (1 << 53);
    /// Of what is no number: a key held somebody else's bytes that looked like a state's.
    const NONE: i64 = i64::MIN;

    fn read(reply: &mut Reply<'_>, rows: &[RowInfo]) -> Option<Self> {
        let mut says = rows.iter().map(|_| reply.signed()).collect::<Option<Vec<i64>>>()?;
        let promises_none = if reply.uses_fast_path { 0 } else { reply.signed()? };
        let mut views = Vec::new();
        let mut is_bad = says.contains(&Self::NONE);
        if !says.iter().any(|says| (Self::BAD..=Self::UNSUPPORTED).contains(says)) {
            for _ in rows.iter().filter(|row| row.kernel.state_encoding() == StateEncoding::Header) {
                let view = [reply.signed()?, reply.signed()?, reply.signed()?].map(unsigned);
                is_bad |= view.contains(&None);
                views.push(view.map(Option::unwrap_or_default));
            }
        }
        if is_bad {
            says[0] = Self::BAD;
        }
        Some(Self { says, promises_none: promises_none == 1, views })
    }

    /// Why nothing was decided, if so.
    fn problem(&self, order: &Order, rows: &[RowInfo]) -> Result<(), Error> {
        let has = |problem| self.says.contains(&problem);
        if has(Self::BAD) {
            return Err(no_state(order, rows));
        }
        if has(Self::UNSUPPORTED) {
            return Err(Error::unsupported(
                "hold failed: the Lua script of an algorithm has no function `charge`; add one (see `LuaAlgorithm`)",
            ));
        }
        if has(Self::FULL) {
            return Err(Error::unavailable(
                "hold failed: 64 sessions of other limiters hold costs on this key, which is the most; use fewer limiters that                  hold on one key, or a sub-key for each of them",
            ));
        }
        Ok(())
    }

    /// The decision, and on which limits it was held.
    #[allow(clippy::too_many_arguments, reason = "it joins what was sent and what came back")]
    fn decision(
        &self,
        now: Timestamp,
        ask: AcquireOptions,
        charges: bool,
        order: &Order,
        rows: &[RowInfo],
        places: &[u16],
        followed: &mut [Followed],
    ) -> Result<(Decision, Vec<bool>), Error> {
        let verdicts: Vec<Verdict> = self.says.iter().map(|&says| verdict(says)).collect();
        let enforced = || rows.iter().zip(&verdicts).filter(|(row, _)| !row.shadow);
        let verdict = enforced().fold(Verdict::Allowed, |all, (_, own)| all.stricter_of(*own));
        let delay = if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO };
        let mut views = self.views.iter();
        let mut standings = Vec::with_capacity(rows.len());
        let mut takes = Vec::with_capacity(if ask.hold { rows.len() } else { 0 });
        let mut supports_scheduling = !self.promises_none && !ask.hold;
        let mut is_estimate = false;
        for (limit, (row, own)) in rows.iter().zip(&verdicts).enumerate() {
            let twin = order.twin(limit, row)?;
            let key = &mut followed[usize::from(places[limit])];
            is_estimate |= key.held > 0 && !row.shadow && !own.is_allowed();
            let is_taken = charges && verdict.is_allowed() && (!row.shadow || own.is_allowed());
            if ask.hold {
                takes.push(is_taken);
                key.held = key.held.saturating_add(if is_taken { ask.cost } else { 0 });
            }
            let reading = if row.kernel.state_encoding() == StateEncoding::Header {
                twin.stand_by_view(views.next().copied().unwrap_or_default(), now)
            } else {
                let charged_after = (is_taken && !ask.hold && ask.cost > 0).then_some(delay);
                // Put back once the algorithm returns.
                let mut numbers = key.numbers.take().ok_or_else(panicked)?;
                let stand = twin.stand(&mut numbers, now, ask, charged_after, key.held);
                key.numbers = Some(numbers);
                stand
            };
            supports_scheduling &= row.shadow || twin.supports_scheduling();
            standings.push(LimitStatus::from_verdict(row.name.clone(), *own, reading, row.shadow));
        }
        let shadows = rows.iter().any(|row| row.shadow);
        let refused = || verdicts.iter().any(|own| !own.is_allowed());
        // One limit by itself is always told: there is nothing to list.
        let list_all = if rows.len() > 1 { ask.lists_all(shadows, refused) } else { shadows };
        let decision = Decision::combine(now, list_all, standings.into_iter()).with_scheduling(supports_scheduling);
        Ok((decision.with_estimate(is_estimate), takes))
    }
}

/// Runs the algorithms of one order, which may be the user's. A panic fails only this order, and later ones on the same keys.
pub(super) fn replayed<T>(replay: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(replay)).unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    Error::unavailable(
        "the reply of Redis was not read: the algorithm of a limit panicked; correct the algorithm, what was asked may have been \
         charged",
    )
}

fn no_state(order: &Order, rows: &[RowInfo]) -> Error {
    let keys: Vec<_> = (0..rows.len()).map(|limit| String::from_utf8_lossy(order.key(limit))).collect();
    Error::unavailable(format!(
        "a key in Redis holds what is no state of this limiter: delete it ({}), or choose another prefix",
        keys.join(", ")
    ))
}

fn verdict(says: i64) -> Verdict {
    match says {
        0 => Verdict::Allowed,
        -1 => Verdict::ExceedsLimit,
        wait if wait > 0 => Verdict::Denied { retry_after: Duration::from_micros(wait.unsigned_abs()) },
        after => Verdict::AllowedAfter(Duration::from_micros(after.unsigned_abs() - 1)),
    }
}

impl Order {
    /// What came of it. `None` if the reply does not say.
    pub(super) fn done(
        &mut self,
        now: Timestamp,
        reply: &mut Reply<'_>,
        rows: &[RowInfo],
        places: &[u16],
        followed: &mut [Followed],
    ) -> Option<Answer> {
        match std::mem::replace(&mut self.steps, Steps::Operate(Vec::new())) {
            Steps::Decide(ask, shape) => {
                let told = Told::read(reply, rows)?;
                let charges = shape.operation == Operation::Acquisition;
                let decided = told.problem(self, rows);
                let decided =
                    decided.and_then(|()| replayed(|| told.decision(now, ask, charges, self, rows, places, followed)));
                Some(decided.map(|(decision, _)| Done::Decided(decision, None)))
            }
            Steps::Hold(_, _, None) => Some(Err(no_algorithm())),
            Steps::Hold(ask, _, Some(bound)) => {
                let told = Told::read(reply, rows)?;
                if let Err(problem) = told.problem(self, rows) {
                    bound.refused();
                    return Some(Err(problem));
                }
                let unknown: Vec<_> = told.says.iter().map(|says| *says == Told::EXPIRED).collect();
                if unknown.contains(&true) {
                    bound.expired(&unknown);
                    return Some(Ok(Done::SessionExpired));
                }
                let decided = replayed(|| told.decision(now, ask, true, self, rows, places, followed));
                Some(decided.map(|(decision, takes)| {
                    if decision.is_allowed() {
                        Done::Decided(decision, Some(bound.granted(ask.cost, &takes)))
                    } else {
                        bound.refused();
                        Done::Decided(decision, None)
                    }
                }))
            }
            Steps::Update(updates) => {
                let mut answer = Ok(Done::Operated);
                for update in updates {
                    let limit = update.session.limit;
                    if update.numbers().is_some() {
                        let (released, charged) = (reply.signed()?, reply.signed()?);
                        if released == Told::BAD || released == Told::NONE || charged < 0 {
                            answer = Err(no_state(self, rows));
                            continue;
                        }
                        let row = &rows[limit];
                        let key = &mut followed[usize::from(places[limit])];
                        key.held = key.held.saturating_sub(unsigned(released).unwrap_or(0));
                        let twin = row.twin(update.session.twin.as_ref());
                        if let (Some(twin), 1.., StateEncoding::Full) = (twin, charged, row.kernel.state_encoding()) {
                            let numbers = key.numbers.take();
                            let charge = |mut numbers: Vec<u64>| {
                                twin.charge(&mut numbers, now, charged.unsigned_abs());
                                Ok(numbers)
                            };
                            key.numbers = numbers.and_then(|numbers| replayed(|| charge(numbers)).ok());
                        }
                        update.done(released != Told::EXPIRED);
                    } else {
                        update.done(true);
                    }
                }
                Some(answer)
            }
            Steps::Operate(shapes) => {
                let says = shapes.iter().map(|_| reply.signed()).collect::<Option<Vec<i64>>>()?;
                if says.contains(&Told::BAD) {
                    return Some(Err(no_state(self, rows)));
                }
                Some(replayed(|| self.follow(&shapes, now, rows, places, followed)).map(|()| Done::Operated))
            }
        }
    }

    /// Does in what is followed what the script has done: later decisions of the batch find it so.
    fn follow(
        &self,
        shapes: &[Arc<Shape>],
        now: Timestamp,
        rows: &[RowInfo],
        places: &[u16],
        followed: &mut [Followed],
    ) -> Result<(), Error> {
        for shape in shapes {
            let limit = usize::from(shape.limit) - 1;
            let row = &rows[limit];
            if row.kernel.state_encoding() != StateEncoding::Header {
                let followed = &mut followed[usize::from(places[limit])].numbers;
                // Put back once the algorithm returns.
                let mut numbers = followed.take().ok_or_else(panicked)?;
                self.twin(limit, row)?.operate(&mut numbers, now, shape);
                *followed = Some(numbers);
            }
        }
        Ok(())
    }

    pub(super) fn twin<'a>(&'a self, limit: usize, row: &'a RowInfo) -> Result<&'a dyn Twin, Error> {
        let own = self.twins.get(limit).and_then(Option::as_ref);
        row.twin(own).ok_or_else(no_algorithm)
    }
}

fn no_algorithm() -> Error {
    Error::unavailable("a limit chose no algorithm")
}
