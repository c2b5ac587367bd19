use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::order::{Operation, Order, Shape, Steps, double};
use super::row::RowInfo;
use super::script::Script;
use super::trade::Parcel;
use super::twin::Twin;
use crate::algorithm::Layout;
use crate::clock::Timestamp;
use crate::decision::{Ask, Decision, Standing, Verdict};
use crate::error::Error;
use crate::limiter::{Outcome, Receipt};

/// Orders that travel together, as one call of the script.
pub(super) struct Batch {
    orders: Vec<Order>,
    /// Which of `keys` each order's keys are, limit by limit.
    places: Vec<u16>,
    /// All keys, each once: where it first stands, as order and limit. Those that are read whole come first.
    keys: Vec<(usize, usize)>,
    input: Vec<u8>,
}

/// A key's state, as it is followed from order to order.
type Followed = Vec<u64>;

impl Batch {
    /// `now` is for tests; otherwise the server's clock counts.
    pub(super) fn of(orders: Vec<Order>, rows: &[RowInfo], now: Option<Timestamp>) -> Self {
        let (keys, places) = distinct_keys(&orders, rows);
        let mut shapes: Vec<&Arc<Shape>> = Vec::new();
        let mut steps = Steps16::new(rows.len());
        for (order, places) in orders.iter().zip(places.chunks(rows.len())) {
            for shape in order.shapes() {
                let known = shapes.iter().rposition(|known| Arc::ptr_eq(known, shape) || known == &shape);
                let index = known.unwrap_or_else(|| {
                    shapes.push(shape);
                    shapes.len() - 1
                });
                steps.push(index, places);
            }
        }
        let mut input = Vec::with_capacity(64 + shapes.len() * 100 + steps.packed.len());
        push_double(now.map_or(0.0, |now| double(now.as_micros())), &mut input);
        push_u16(usize::from(shapes.iter().all(|shape| shape.is_short)), &mut input);
        push_u16(shapes.len(), &mut input);
        push_u16(steps.count, &mut input);
        for limit in 0..rows.len() {
            push_u16(keys.iter().filter(|key| key.1 == limit).count(), &mut input);
        }
        for shape in shapes {
            shape.write(&mut input);
        }
        input.extend_from_slice(&steps.packed);
        Self { orders, places, keys, input }
    }

    /// The call by the script's hash, or with its whole text.
    pub(super) fn command(&self, script: &Script, by_hash: bool) -> Cmd {
        let mut command = redis::cmd(if by_hash { "EVALSHA" } else { "EVAL" });
        command.arg(if by_hash { script.hash() } else { script.text() }).arg(self.keys.len());
        for &(order, limit) in &self.keys {
            command.arg(self.orders[order].key(limit));
        }
        command.arg(&self.input[..]);
        command
    }

    pub(super) fn into_orders(self) -> Vec<Order> {
        self.orders
    }

    /// Tells everybody what came of it.
    pub(super) fn answer(self, rows: &[RowInfo], reply: &Value) -> Result<(), Error> {
        if let Some(outcomes) = self.outcomes(rows, reply) {
            for (order, outcome) in self.orders.into_iter().zip(outcomes) {
                order.answer(outcome);
            }
            return Ok(());
        }
        let error = Error::unavailable("Redis answered a script with what that never returns");
        for order in self.orders {
            order.answer(Err(error.clone()));
        }
        Err(error)
    }

    fn outcomes(&self, rows: &[RowInfo], reply: &Value) -> Option<Vec<Result<Option<Outcome>, Error>>> {
        let (now, mut reply, mut followed) = Reply::of(reply, self.keys.len())?;
        let mut outcomes = Vec::with_capacity(self.orders.len());
        for (order, places) in self.orders.iter().zip(self.places.chunks(rows.len())) {
            outcomes.push(match &order.steps {
                Steps::Operate(shapes) => {
                    let says = shapes.iter().map(|_| reply.signed()).collect::<Option<Vec<i64>>>()?;
                    if says.contains(&Told::BAD) {
                        Err(no_state(order, rows))
                    } else {
                        order.follow(shapes, now, rows, places, &mut followed)
                    }
                }
                Steps::Decide(ask, shape) => {
                    let charges = shape.operation == Operation::Acquire && ask.cost > 0;
                    let told = Told::read(&mut reply, rows)?;
                    told.outcome(now, *ask, charges, order, rows, places, &mut followed).map(Some)
                }
            });
        }
        Some(outcomes)
    }
}

/// The steps, packed: equal ones in a row become one with their number.
struct Steps16 {
    packed: Vec<u8>,
    last: Vec<u16>,
    step: Vec<u16>,
    count: usize,
}

impl Steps16 {
    fn new(limits: usize) -> Self {
        Self { packed: Vec::new(), last: Vec::new(), step: Vec::with_capacity(limits + 1), count: 0 }
    }

    fn push(&mut self, shape: usize, places: &[u16]) {
        self.step.clear();
        self.step.push(from_one(shape));
        self.step.extend(places.iter().map(|place| place + 1));
        if self.step == self.last {
            let times = self.packed.len() - 2;
            let count = u16::from_le_bytes([self.packed[times], self.packed[times + 1]]) + 1;
            self.packed[times..].copy_from_slice(&count.to_le_bytes());
            return;
        }
        for number in &self.step {
            self.packed.extend_from_slice(&number.to_le_bytes());
        }
        self.packed.extend_from_slice(&1_u16.to_le_bytes());
        self.count += 1;
        self.last.clone_from(&self.step);
    }
}

fn from_one(index: usize) -> u16 {
    u16::try_from(index + 1).unwrap_or(u16::MAX)
}

/// All keys, each once, limit by limit, those of which a decision reads parts last; and for each order and limit, which of
/// them.
fn distinct_keys(orders: &[Order], rows: &[RowInfo]) -> (Vec<(usize, usize)>, Vec<u16>) {
    let mut keys: Vec<(usize, usize)> = Vec::with_capacity(orders.len() * rows.len());
    let mut places = vec![0_u16; orders.len() * rows.len()];
    let mut known =
        HashMap::with_capacity_and_hasher(orders.len() * rows.len(), foldhash::fast::RandomState::default());
    for layout in [Layout::Whole, Layout::Head] {
        for (limit, _) in rows.iter().enumerate().filter(|(_, row)| row.kernel.layout() == layout) {
            for (index, order) in orders.iter().enumerate() {
                let place = *known.entry(order.key(limit)).or_insert_with(|| {
                    keys.push((index, limit));
                    u16::try_from(keys.len() - 1).unwrap_or(u16::MAX)
                });
                places[index * rows.len() + limit] = place;
            }
        }
    }
    (keys, places)
}

impl Shape {
    fn write(&self, to: &mut Vec<u8>) {
        push_u16(usize::from(self.operation as u16), to);
        push_u16(usize::from(self.limit), to);
        push_double(double(self.first), to);
        push_double(u64::try_from(self.second).map_or(-1.0, double), to);
        for &number in &self.params {
            push_double(double(number), to);
        }
    }
}

fn push_u16(number: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
}

fn push_double(number: f64, to: &mut Vec<u8>) {
    to.extend_from_slice(&number.to_le_bytes());
}

/// The reply's numbers, one after the other: see `driver.lua`.
struct Reply<'a> {
    is_short: bool,
    says: std::slice::ChunksExact<'a, u8>,
}

impl<'a> Reply<'a> {
    /// The time, the numbers, and what each key held.
    fn of(value: &'a Value, keys: usize) -> Option<(Timestamp, Self, Vec<Followed>)> {
        let Value::BulkString(bytes) = value else { return None };
        let (head, rest) = bytes.split_at_checked(14)?;
        let now = unsigned(read_double(head.get(..8)?)?)?;
        let is_short = read_u16(head.get(8..10)?)? == 1;
        let length = read_u16(head.get(10..12)?)?;
        if read_u16(head.get(12..14)?)? != keys {
            return None;
        }
        let (says, rest) = rest.split_at_checked(length * 8)?;
        let (lengths, mut values) = rest.split_at_checked(keys * 2)?;
        let mut followed = Vec::with_capacity(keys);
        for length in lengths.chunks_exact(2) {
            let (value, others) = values.split_at_checked(read_u16(length)?)?;
            values = others;
            let numbers = value.chunks_exact(8).map(|number| read_double(number).and_then(unsigned));
            followed.push(numbers.collect::<Option<Followed>>()?);
        }
        Some((Timestamp::from_micros(now), Self { is_short, says: says.chunks_exact(8) }, followed))
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
    /// Of what is no number: a key held somebody else's bytes that looked like a state's.
    const NONE: i64 = i64::MIN;

    fn read(reply: &mut Reply<'_>, rows: &[RowInfo]) -> Option<Self> {
        let mut says = rows.iter().map(|_| reply.signed()).collect::<Option<Vec<i64>>>()?;
        let promises_none = if reply.is_short { 0 } else { reply.signed()? };
        let mut views = Vec::new();
        let mut is_bad = says.contains(&Self::NONE);
        if says[0] != Self::BAD {
            for _ in rows.iter().filter(|row| row.kernel.layout() == Layout::Head) {
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

    #[allow(clippy::too_many_arguments, reason = "it joins what was sent and what came back")]
    fn outcome(
        &self,
        now: Timestamp,
        ask: Ask,
        charges: bool,
        order: &Order,
        rows: &[RowInfo],
        places: &[u16],
        followed: &mut [Followed],
    ) -> Result<Outcome, Error> {
        if self.says[0] == Self::BAD {
            return Err(no_state(order, rows));
        }
        let verdicts: Vec<Verdict> = self.says.iter().map(|&says| verdict(says)).collect();
        let enforced = || rows.iter().zip(&verdicts).filter(|(row, _)| !row.shadow);
        let verdict = enforced().fold(Verdict::Allowed, |all, (_, own)| all.and(*own));
        let delay = if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO };
        let (cost, turn) = if charges { (ask.cost, now.after(delay)) } else { (0, now) };
        let mut receipt = verdict.is_allowed().then(|| Receipt::new(now, cost, rows.len()).with_turn(turn));
        let mut views = self.views.iter();
        let mut standings = Vec::with_capacity(rows.len());
        let mut promises_turns = !self.promises_none;
        for (limit, (row, own)) in rows.iter().zip(&verdicts).enumerate() {
            let twin = order.twin(limit, row)?;
            let is_charged = charges && verdict.is_allowed() && (!row.shadow || own.is_allowed());
            let (reading, until) = if row.kernel.layout() == Layout::Head {
                twin.stand_by_view(views.next().copied().unwrap_or_default(), now)
            } else {
                let numbers = &mut followed[usize::from(places[limit])];
                twin.stand(numbers, now, is_charged.then_some((delay, ask.cost)))
            };
            match &mut receipt {
                Some(receipt) if is_charged => receipt.until_mut()[limit] = until,
                Some(receipt) if charges => receipt.skip(limit),
                _ => {}
            }
            promises_turns &= row.shadow || twin.promises_turns();
            standings.push(Standing::new(row.name.clone(), *own, reading, row.shadow));
        }
        let shadows = rows.iter().any(|row| row.shadow);
        let refused = || verdicts.iter().any(|own| !own.is_allowed());
        // One limit by itself is always told: there is nothing to list.
        let list_all = if rows.len() > 1 { ask.lists_all(shadows, refused) } else { shadows };
        let decision = Decision::of_limits(now, list_all, standings.into_iter()).with_turns(promises_turns);
        Ok(Outcome { decision, receipt })
    }
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
        -1 => Verdict::Never,
        wait if wait > 0 => Verdict::Denied { retry_after: Duration::from_micros(wait.unsigned_abs()) },
        after => Verdict::AllowedAfter(Duration::from_micros(after.unsigned_abs() - 1)),
    }
}

impl Order {
    /// Does in what is followed what the script has done: later decisions of the batch find it so.
    fn follow(
        &self,
        shapes: &[Arc<Shape>],
        now: Timestamp,
        rows: &[RowInfo],
        places: &[u16],
        followed: &mut [Followed],
    ) -> Result<Option<Outcome>, Error> {
        for shape in shapes {
            let limit = usize::from(shape.limit) - 1;
            let row = &rows[limit];
            if row.kernel.layout() != Layout::Head {
                let numbers = &mut followed[usize::from(places[limit])];
                self.twin(limit, row)?.operate(numbers, now, shape);
            }
        }
        Ok(None)
    }

    fn twin<'a>(&'a self, limit: usize, row: &'a RowInfo) -> Result<&'a dyn Twin, Error> {
        let own = self.twins.get(limit).and_then(Option::as_ref);
        own.or(row.fixed.as_ref()).map(|twin| &**twin).ok_or_else(|| Error::unavailable("a limit chose no algorithm"))
    }
}
