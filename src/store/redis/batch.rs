use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redis::{Cmd, Value};

use super::holds::{Holds, NewSessions};
use super::order::{Order, Shape, Steps, double};
use super::reply::{Reply, replayed};
use super::row::RowInfo;
use super::script::Script;
use super::trade::Parcel;
use crate::algorithm::StateEncoding;
use crate::clock::Timestamp;
use crate::error::Error;

/// Orders that travel together, as one call of the script.
pub(super) struct Batch {
    orders: Vec<Order>,
    /// Which of `keys` each order's keys are, limit by limit.
    places: Vec<u16>,
    /// All keys, each once: where it first stands, as order and limit. Those that are read whole come first.
    keys: Vec<(usize, usize)>,
    input: Vec<u8>,
}

impl Batch {
    /// `now` is for tests; otherwise the server's clock counts.
    pub(super) fn of(mut orders: Vec<Order>, rows: &[RowInfo], holds: &Arc<Holds>, now: Option<Timestamp>) -> Self {
        load(&mut orders, rows, holds);
        let (keys, places) = distinct_keys(&orders, rows);
        let mut shapes: Vec<(&Arc<Shape>, Vec<f64>)> = Vec::new();
        let mut steps = Steps16::new(rows.len());
        for (order, places) in orders.iter().zip(places.chunks(rows.len())) {
            let mut push = |shape, others: Vec<f64>| {
                let is_known = |known: &(&Arc<Shape>, Vec<f64>)| {
                    (Arc::ptr_eq(known.0, shape) || known.0 == shape) && known.1 == others
                };
                let index = shapes.iter().rposition(is_known).unwrap_or_else(|| {
                    shapes.push((shape, others));
                    shapes.len() - 1
                });
                steps.push(index, places);
            };
            match &order.steps {
                Steps::Decide(_, shape) => push(shape, Vec::new()),
                Steps::Hold(_, shape, Some(bound)) => push(shape, bound.ids()),
                Steps::Hold(..) => {}
                Steps::Update(updates) => {
                    for update in updates {
                        if let Some(numbers) = update.numbers() {
                            push(&update.session.shape, numbers.to_vec());
                        }
                    }
                }
                Steps::Operate(shapes) => shapes.iter().for_each(|shape| push(shape, Vec::new())),
            }
        }
        let mut input = Vec::with_capacity(64 + shapes.len() * 100 + steps.packed.len());
        push_double(now.map_or(0.0, |now| double(now.as_micros())), &mut input);
        let uses_fast_path = !shapes.is_empty() && shapes.iter().all(|shape| shape.0.uses_fast_path);
        push_u16(usize::from(uses_fast_path), &mut input);
        push_u16(shapes.len(), &mut input);
        push_u16(steps.count, &mut input);
        for limit in 0..rows.len() {
            push_u16(keys.iter().filter(|key| key.1 == limit).count(), &mut input);
        }
        for (shape, others) in shapes {
            shape.write(&mut input);
            for number in others {
                push_double(number, &mut input);
            }
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

    /// Tells everybody what came of it. Returns how many holds were found to have expired.
    pub(super) fn answer(self, rows: &[RowInfo], reply: &Value) -> Result<usize, Error> {
        let Some((now, mut reply, mut followed)) = Reply::of(reply, self.keys.len()) else {
            return Err(unexpected(self.orders));
        };
        let mut orders = self.orders.into_iter();
        for places in self.places.chunks(rows.len()) {
            let Some(mut order) = orders.next() else { break };
            let Some(answer) = order.done(now, &mut reply, rows, places, &mut followed) else {
                let others = std::iter::once(order).chain(orders).collect();
                return Err(unexpected(others));
            };
            order.answer(answer);
        }
        Ok(reply.expired)
    }
}

/// The server has answered what it never does.
fn unexpected(orders: Vec<Order>) -> Error {
    let error = Error::unavailable("unexpected reply to the rate limit script");
    for order in orders {
        order.answer(Err(error.clone()));
    }
    error
}

/// Settle what is known only now: in which sessions is held, and what updates carry.
fn load(orders: &mut [Order], rows: &[RowInfo], holds: &Arc<Holds>) {
    let (mut new, mut updated) = (NewSessions::default(), HashSet::new());
    for order in orders {
        match &mut order.steps {
            Steps::Hold(ask, shape, bound) => {
                // It was sent before, and not carried out.
                if let Some(bound) = bound.take() {
                    bound.refused();
                }
                let (ask, shape) = (*ask, Arc::clone(shape));
                let bound = replayed(|| holds.bind(order, rows, &mut new)).ok();
                order.steps = Steps::Hold(ask, shape, bound);
            }
            Steps::Update(updates) => {
                for update in updates {
                    update.load(updated.insert(update.session.id));
                }
            }
            _ => {}
        }
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
        self.step.extend(places.iter().map(|place| place.wrapping_add(1)));
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

/// Of a limit that an order does not concern: its index in the script is 0.
const NO_PLACE: u16 = u16::MAX;

/// All keys, each once, limit by limit, those of which a decision reads parts last; and for each order and limit, which of
/// them.
fn distinct_keys(orders: &[Order], rows: &[RowInfo]) -> (Vec<(usize, usize)>, Vec<u16>) {
    let mut keys: Vec<(usize, usize)> = Vec::with_capacity(orders.len() * rows.len());
    let mut places = vec![NO_PLACE; orders.len() * rows.len()];
    let mut known =
        HashMap::with_capacity_and_hasher(orders.len() * rows.len(), foldhash::fast::RandomState::default());
    for layout in [StateEncoding::Full, StateEncoding::Header] {
        for (limit, _) in rows.iter().enumerate().filter(|(_, row)| row.kernel.state_encoding() == layout) {
            for (index, order) in orders.iter().enumerate().filter(|(_, order)| !order.key(limit).is_empty()) {
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
