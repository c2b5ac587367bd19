//! The calls that the fast path does not decide, and the trait [`Limiter`].

use std::sync::Arc;

use super::chain::PartList;
use super::hold_by_id::ChargedFor;
use super::limiter::{Memory, Shared};
use super::limits::{INLINE_LIMITS, MemoryLimits};
use super::table::TableFull;
use super::transaction::{LimitStep, Transaction};
use super::transaction_limit::{AcquireContext, NotDecided, read_clock};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::error::Error;
use crate::limiter::{AdminOperation, Held, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::store::inner::{HeldEntry, ReleaseOnDrop, capacity_released, limit_id};

impl<Key: ?Sized, L: MemoryLimits<Key>> Memory<Key, L> {
    /// Decides what the fast path does not handle: holds, for example.
    #[inline(never)]
    fn acquire_slow(&self, context: &AcquireContext<'_, Key>, not_decided: NotDecided) -> Result<Outcome, Error>
    where
        Key: 'static,
        L: 'static,
    {
        let (key, options) = (context.key, &context.options);
        self.check_units(options)?;
        self.shared.end_due();
        // Released if nothing is decided, or if an algorithm panics.
        let mut held = ReleaseOnDrop::new(None);
        if not_decided == NotDecided::NotApplicable {
            let has_flights = L::has_flights(&self.shared.tables);
            if !options.keeps_guard && has_flights {
                return Err(Error::guard_not_kept());
            }
            if let Some(reserve) = options.reserve() {
                return self.hold_with_id(key, *options, reserve);
            }
            if let Some(once) = options.charged_once() {
                let (decision, entries, charged_for) = self.acquire_once(key, *options, once)?;
                return Ok(self.outcome(options, decision, Some(self.guard(options, &entries)), charged_for));
            }
            // Rates alone hold nothing for a guard: row "memory Vec of two limits" of benches/figures.md.
            held = ReleaseOnDrop::new((options.hold || has_flights).then(|| self.guard(options, &[])));
        }
        if let Some(decision) = L::try_complete(&self.shared.tables, context, held.held_mut()) {
            return Ok(self.outcome(options, decision, held.into_held(), None));
        }
        let (decision, entries) = self.shared.acquire(context);
        // The limits may have been replaced meanwhile by some that hold.
        let mut held = held.into_held().or_else(|| (!entries.is_empty()).then(|| self.guard(options, &[])));
        if let Some(held) = &mut held {
            for entry in entries {
                held.add(entry);
            }
        }
        Ok(self.outcome(options, decision, held, None))
    }

    /// Checks that a limit names each unit of the options.
    pub(super) fn check_units(&self, options: &AcquireOptions) -> Result<(), Error> {
        options.check_units(|visit| visit_units::<Key, L>(&self.shared.tables, visit))
    }

    /// Returns the guard of what the limits hold.
    fn guard(&self, options: &AcquireOptions, entries: &[HeldEntry]) -> Held
    where
        Key: 'static,
        L: 'static,
    {
        let store = Arc::<Shared<Key, L>>::clone(&self.shared);
        let mut held = Held::of_store(options.hold.then_some(options.cost), store);
        for entry in entries {
            held.add(*entry);
        }
        held
    }

    /// Returns the outcome of a decision, with the guard if the request is allowed and holds anything.
    ///
    /// The settlement records what is charged for `charged_for`, if there is an id.
    fn outcome(
        &self,
        options: &AcquireOptions,
        decision: Decision,
        held: Option<Held>,
        charged_for: Option<ChargedFor>,
    ) -> Outcome
    where
        Key: 'static,
        L: 'static,
    {
        let Some(mut held) = held.filter(|held| !held.is_empty() && decision.is_allowed()) else {
            return decision.into();
        };
        if options.hold {
            held = held.with_units(options.costs(), |visit| visit_units::<Key, L>(&self.shared.tables, visit));
        }
        if let Some(request) = charged_for {
            let (shared, costs) = (Arc::clone(&self.shared), options.costs());
            held = held.map_settle(move |held, actual| {
                let settled = held.settle(actual);
                if let Some(Ok(())) = settled.as_ready() {
                    request.record(&shared.reservations, read_clock(&shared.clock), actual.or_number(costs));
                }
                settled
            });
        }
        Outcome::of_store(decision, Some(held))
    }
}

#[allow(clippy::redundant_closure_for_method_calls, reason = "a closure is for every lifetime")]
impl<Key: ?Sized, L: MemoryLimits<Key>> Shared<Key, L> {
    /// Decides by a transaction, and charges or holds the cost. Returns the limits on which the cost is held as well.
    pub(super) fn acquire(&self, context: &AcquireContext<'_, Key>) -> (Decision, Vec<HeldEntry>) {
        self.transact(context, |transaction| transaction.acquire())
            .unwrap_or_else(|| (Decision::without_limit(context.now, Verdict::ExceedsLimit), Vec::new()))
    }

    /// Decides by a transaction, and changes nothing.
    pub(super) fn peek(&self, context: &AcquireContext<'_, Key>) -> Decision {
        self.transact(context, |transaction| transaction.peek())
            .unwrap_or_else(|| Decision::without_limit(context.now, Verdict::ExceedsLimit))
    }

    /// Runs `decide` on the limits that apply. Always returns a value.
    fn transact<T>(&self, context: &AcquireContext<'_, Key>, decide: fn(Transaction<'_>) -> T) -> Option<T> {
        let (mut decided, mut ended) = (None, Vec::new());
        L::with_parts(&self.tables, context, &mut |parts| {
            decided = Some(transact(parts, context.options, context.now, context.clock, &mut ended, decide));
        });
        if !ended.is_empty() {
            capacity_released(ended.into_iter().map(limit_id));
        }
        decided
    }
}

/// Runs a transaction on the parts of a list.
fn transact<T>(
    list: Option<&PartList<'_>>,
    options: AcquireOptions,
    now: Timestamp,
    clock: &dyn Clock,
    ended: &mut Vec<(u64, u64)>,
    decide: fn(Transaction<'_>) -> T,
) -> T {
    let count = PartList::iter(list).count();
    let first = list.map(|list| LimitStep::new(list.part));
    let (mut few, mut some, mut many);
    // A step is large, so a few limits initialize no more than they need.
    let steps: &mut [LimitStep<'_>] = match (first, count) {
        (None, _) => &mut [],
        (Some(first), ..=2) => {
            few = [first; 2];
            &mut few[..count]
        }
        (Some(first), ..=INLINE_LIMITS) => {
            some = [first; INLINE_LIMITS];
            &mut some[..count]
        }
        (Some(first), _) => {
            many = vec![first; count];
            &mut many
        }
    };
    steps.iter_mut().zip(PartList::iter(list)).for_each(|(step, part)| step.part = part);
    decide(Transaction::new(steps, options, now, clock, ended))
}

fn visit_units<Key: ?Sized, L: MemoryLimits<Key>>(tables: &L::Tables, visit: &mut dyn FnMut(&'static str)) {
    L::for_each(tables, &mut |table| table.info().describe(&mut |_, _, unit| unit.into_iter().for_each(&mut *visit)));
}

pub(super) fn table_full(full: TableFull) -> Error {
    Error::unavailable(if full.all_held {
        "key table full: all keys in the place of the key have held costs or requests in flight; raise `max_keys`"
    } else {
        "key table full: eviction is disabled (`WhenFull::Deny`); raise `max_keys`"
    })
}

impl<Key, L> Limiter<Key> for Memory<Key, L>
where
    Key: ?Sized + 'static,
    L: MemoryLimits<Key> + 'static,
{
    #[inline]
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let context = self.context(key, options);
        let decided = if options.call_id.is_some() {
            Err(NotDecided::NotApplicable)
        } else {
            L::try_acquire(&self.shared.tables, &context)
        };
        match decided {
            Ok(decision) => LimiterFuture::ready(Ok(decision.into())),
            Err(error) => LimiterFuture::ready(self.acquire_slow(&context, error)),
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.shared.end_due();
        let peeked = self.check_units(&options).map(|()| self.shared.peek(&self.context(key, options)));
        LimiterFuture::ready(peeked)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        let tables = &self.shared.tables;
        if limits.add_all(|visit| L::for_each(tables, &mut |limit| limit.info().describe(visit))) {
            return;
        }
        let context = self.context(key, AcquireOptions::default());
        L::for_each(tables, &mut |limit| {
            limit.with_part(&context, &mut |part| part.name_limit(limits));
        });
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.shared.end_due();
        let context = self.context(key, AcquireOptions::default());
        let done = LimiterFuture::ready(match operation {
            AdminOperation::SetUsage { limit, used } => {
                let set = self.in_limit_of(limit, &context, |part| part.set(used, context.now, context.clock));
                set.and_then(|set| set.map_err(table_full))
            }
            AdminOperation::Block { limit, duration, reason } => {
                let until = context.now.saturating_add(duration);
                self.in_limit_of(limit, &context, |part| part.block(context.now, until, reason))
            }
            AdminOperation::Settle { id, actual } => self.settle_id(key, id, actual),
            AdminOperation::Reset => {
                L::for_each(&self.shared.tables, &mut |table| {
                    table.with_part(&context, &mut |part| part.reset());
                });
                Ok(())
            }
        });
        operation.wake_waiters(self, key, done)
    }
}
