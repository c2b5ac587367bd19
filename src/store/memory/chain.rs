//! The plain case of limits of any types, and of holds, if all limits allow at once.

use std::ops::Deref;

use super::charged::Charged;
use super::part::Part;
use super::table::Keys;
use super::transaction_limit::{AcquireContext, TransactionLimit};
use crate::algorithm::Algorithm;
use crate::clock::{Clock, Timestamp};
use crate::decision::{Decision, Verdict};
use crate::limiter::Held;
use crate::store::inner::{ShareRole, StatusList};

/// The plain case of limits of unknown types, and of requests with a guard or a hold: see [`Part::charge_plain`].
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct PlainChain<'p> {
    now: Timestamp,
    clock: &'p dyn Clock,
    last_table: Option<u64>,
    lists_all: bool,
    has_shadow: bool,
    has_common: bool,
    has_share: bool,
    /// Whether all limits that were charged support scheduling.
    supports_scheduling: bool,
    /// Of the limits that were charged, the one with the least remaining. `None` if the decision lists them.
    least: Option<(u64, Charged<'p>)>,
    /// All limits that were charged, the last one first, if the decision lists them.
    listed: StatusList,
    /// What is held, of the last limit first. If an algorithm panics, the guard releases it.
    pub(super) held: Option<&'p mut Held>,
}

impl<'p> PlainChain<'p> {
    /// Enters the next limit. Returns `false` if the chain cannot decide.
    #[inline]
    pub(super) fn enter(&mut self, table: u64, share: ShareRole, is_shadow: bool, is_last: bool) -> bool {
        self.has_shadow |= is_shadow;
        self.has_common |= share == ShareRole::Common;
        self.has_share |= share == ShareRole::Share;
        // Two lists of limits may have the same tables in another order: the transaction then sorts its locks. A request
        // to which the share does not apply borrows.
        self.last_table.is_none_or(|last| last < table) && (!is_last || self.has_share || !self.has_common)
    }

    /// Returns the time of the decision. `None` if a key was decided later than the first one: the transaction reads the
    /// clock under all locks.
    #[inline]
    pub(super) fn decide_at<A: Algorithm>(&mut self, table: u64, keys: &mut Keys<A>) -> Option<Timestamp> {
        if self.last_table.replace(table).is_none() {
            self.now = keys.decide_at(self.now, self.clock);
        } else if keys.last_decided_at() > self.now.as_micros() {
            return None;
        } else {
            keys.set_last_decided_at(self.now);
        }
        Some(self.now)
    }

    /// Returns whether the decision lists the limits. If not, it has the one with the least remaining.
    #[inline]
    pub(super) fn lists(&self) -> bool {
        self.lists_all || self.has_shadow
    }

    /// Adds a limit that was charged, with its remaining units.
    #[inline]
    pub(super) fn add(&mut self, charged: Charged<'p>, remaining: u64) {
        self.supports_scheduling &= charged.supports_scheduling;
        if self.lists() {
            return self.listed.push(charged.status());
        }
        // Of equals, the first one.
        if self.least.as_ref().is_none_or(|(least, _)| remaining <= *least) {
            self.least = Some((remaining, charged));
        }
    }
}

/// Charges limits of any types in the plain case, or holds. `None`, with nothing charged or held, leaves the request to the transaction.
// Row "memory Vec of two limits" of benches/figures.md: the transaction takes four times as long.
pub(super) fn try_limits<'a, Key: ?Sized + 'a, L>(
    limits: &[L],
    context: &AcquireContext<'_, Key>,
    mut held: Option<&mut Held>,
) -> Option<Decision>
where
    L: Deref<Target = dyn TransactionLimit<Key> + 'a>,
{
    let mut decided = None;
    with_parts_of(limits, context, None, &mut |parts| decided = try_parts(parts, context, held.as_deref_mut()));
    decided
}

fn try_parts<Key: ?Sized>(
    parts: Option<&PartList<'_>>,
    context: &AcquireContext<'_, Key>,
    held: Option<&mut Held>,
) -> Option<Decision> {
    let parts = parts?;
    let mut chain = PlainChain {
        now: context.now,
        clock: context.clock,
        last_table: None,
        lists_all: context.options.lists_all(Verdict::Allowed),
        has_shadow: false,
        has_common: false,
        has_share: false,
        supports_scheduling: true,
        least: None,
        listed: StatusList::EMPTY,
        held,
    };
    if !parts.part.charge_plain(parts.rest, parts.rest.is_none(), &mut chain) {
        return None;
    }
    if let Some(held) = &mut chain.held {
        held.reverse();
    }
    // By reference: a limit that was charged is large.
    if let Some((_, least)) = &chain.least {
        return Some(Decision::from_store(chain.now, chain.supports_scheduling, least.status()));
    }
    chain.listed.reverse();
    let lists_all = chain.lists_all && parts.rest.is_some();
    Some(Decision::of_listed(chain.now, chain.supports_scheduling, chain.listed, lists_all))
}

/// The parts of the limits of a decision, in their order. They are on the stack, each in a call of `with_parts_of`.
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct PartList<'a> {
    pub(super) part: &'a dyn Part,
    pub(super) rest: Option<&'a PartList<'a>>,
}

impl<'a> PartList<'a> {
    /// Returns the parts of a list.
    pub(super) fn iter(list: Option<&'a Self>) -> impl Iterator<Item = &'a dyn Part> {
        std::iter::successors(list, |list| list.rest).map(|list| list.part)
    }
}

/// Runs `f` on the parts of the `limits` that apply, and then of the `rest`.
#[inline]
pub(super) fn with_parts_of<'a, Key: ?Sized + 'a, L>(
    limits: &[L],
    context: &AcquireContext<'_, Key>,
    rest: Option<&PartList<'_>>,
    f: &mut dyn FnMut(Option<&PartList<'_>>),
) where
    L: Deref<Target = dyn TransactionLimit<Key> + 'a>,
{
    let Some((last, limits)) = limits.split_last() else { return f(rest) };
    let applies =
        last.with_part(context, &mut |part| with_parts_of(limits, context, Some(&PartList { part, rest }), &mut *f));
    if !applies {
        with_parts_of(limits, context, rest, f);
    }
}
