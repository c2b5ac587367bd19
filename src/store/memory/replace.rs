//! Limits that are chosen and replaced at run time.

use std::any::Any;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::decide::Charges;
use super::hasher::DefaultHashBuilder;
use super::limit_table::LimitTable;
use super::limits::MemoryLimits;
use super::transaction;
use super::transaction_limit::{AcquireContext, Capacity, HeldLimit, LimitStep, TransactionLimit};
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::limit::{IntoLimit, Limit, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{LimitFacts, Shares, check_limits, table::LookupError};

/// A limit of any type, for limits that are chosen at run time: collect them in a `Vec`.
///
/// Such limits can be [replaced](super::Memory::replace) while they are used. A decision over up to eight of them
/// allocates nothing.
///
/// ```
/// use tower_ratelimit::{AcquireOptions, DynLimit, FixedWindow, Gcra, Limit, Memory, Quota};
///
/// let mut limits: Vec<DynLimit<str>> = vec![DynLimit::new(Limit::new("smooth", Gcra::new(Quota::per_second(10))))];
/// if std::env::args().count() > 5 {
///     limits.push(DynLimit::new(Limit::new("daily", FixedWindow::new(Quota::per_day(10_000)))));
/// }
/// let limiter = Memory::new(limits);
/// assert!(limiter.check("alice", AcquireOptions::default()).is_allowed());
/// ```
pub struct DynLimit<Key: ?Sized, S = DefaultHashBuilder>(Box<dyn BuildLimit<Key, S>>);

impl<Key: ?Sized, S: BuildHasher> DynLimit<Key, S> {
    /// Boxes a limit.
    pub fn new<L>(limit: L) -> Self
    where
        L: IntoLimit,
        L::Selector: SelectAlgorithm<Key>,
        L::SubKeyFn: SubKeyOf<Key>,
        <L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
    {
        Self(Box::new(limit.into_limit()))
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }
}

impl<Key: ?Sized, S> fmt::Debug for DynLimit<Key, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynLimit").finish_non_exhaustive()
    }
}

trait BuildLimit<Key: ?Sized, S>: Send + Sync {
    fn name(&self) -> &str;
    fn facts(&self) -> LimitFacts;
    fn build(
        self: Box<Self>,
        shares: Option<Shares>,
        capacity: Capacity,
        previous: Option<&dyn Any>,
    ) -> Result<DynLimitTable<Key, S>, Error>;
}

impl<Key, S, C, P> BuildLimit<Key, S> for Limit<C, P>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    fn name(&self) -> &str {
        Self::name(self)
    }

    fn facts(&self) -> LimitFacts {
        self.facts::<Key>()
    }

    fn build(
        self: Box<Self>,
        shares: Option<Shares>,
        capacity: Capacity,
        previous: Option<&dyn Any>,
    ) -> Result<DynLimitTable<Key, S>, Error> {
        Ok(Arc::new(LimitTable::replacing(self.beside(shares), capacity, previous)?))
    }
}

type DynLimitTable<Key, S> = Arc<dyn TransactionLimit<Key, S>>;

struct DynTables<Key: ?Sized, S> {
    tables: Vec<DynLimitTable<Key, S>>,
    /// Without a condition every limit applies, and no decision needs to ask each of them.
    has_conditions: bool,
    has_shadows: bool,
}

/// The present limits.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct DynLimits<Key: ?Sized, S> {
    now: ArcSwap<DynTables<Key, S>>,
    /// Serialises replacements: each takes over the tables of the one before.
    pub(super) replace_lock: Mutex<()>,
    capacity: Capacity,
}

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> DynLimits<Key, S> {
    /// Replaces the limits. A limit with the name and the type of a previous one takes over its table.
    pub(super) fn replace(&self, limits: Vec<DynLimit<Key, S>>) -> Result<(), Error> {
        let _one = self.replace_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = build(limits, self.capacity, &self.now.load_full().tables)?;
        // Decisions under way finish with the limits that they have loaded. Kept tables are shared, so their charges
        // count.
        self.now.store(Arc::new(tables));
        Ok(())
    }
}

fn build<Key: ?Sized, S: BuildHasher>(
    limits: Vec<DynLimit<Key, S>>,
    capacity: Capacity,
    previous: &[DynLimitTable<Key, S>],
) -> Result<DynTables<Key, S>, Error> {
    let facts: Vec<_> = limits.iter().map(|limit| limit.0.facts()).collect();
    let has_conditions = facts.iter().any(|limit| limit.is_conditional);
    let has_shadows = facts.iter().any(|limit| limit.is_shadow);
    let shares = if limits.is_empty() && capacity.allow_no_limits { None } else { check_limits(&facts)? };
    let build = |limit: DynLimit<Key, S>| {
        let previous = previous.iter().find(|table| table.name().as_str() == limit.name());
        limit.0.build(shares, capacity, previous.map(|table| table.as_any()))
    };
    Ok(DynTables { tables: limits.into_iter().map(build).collect::<Result<_, Error>>()?, has_conditions, has_shadows })
}

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> MemoryLimits<Key, S> for Vec<DynLimit<Key, S>> {
    type Tables = DynLimits<Key, S>;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
        Ok(DynLimits {
            now: ArcSwap::from_pointee(build(self, capacity, &[])?),
            replace_lock: Mutex::default(),
            capacity,
        })
    }

    fn is_held_until_end(tables: &Self::Tables) -> bool {
        tables.now.load().tables.iter().any(|table| table.is_held_until_end())
    }

    #[inline]
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Result<Decision, LookupError> {
        let tables = tables.now.load();
        match (&*tables.tables, context.options) {
            ([one], _) if !tables.has_conditions => one.try_acquire(context),
            ([first, rest @ ..], options)
                if rest.len() < INLINE_LIMITS && !tables.has_conditions && !(options.hold || options.has_units()) =>
            {
                let lists_all = options.lists_all(Verdict::Allowed);
                let mut charges = Charges::none(lists_all || tables.has_shadows);
                // `first` only fills the array.
                let mut others = [&**first; INLINE_LIMITS];
                for (other, limit) in others.iter_mut().zip(rest) {
                    *other = &**limit;
                }
                let is_charged = first.try_charge(context, &others[..rest.len()], &mut charges);
                let decision = if is_charged { charges.into_decision(context.now, lists_all) } else { None };
                decision.ok_or(LookupError::NotApplicable)
            }
            _ => Err(LookupError::NotApplicable),
        }
    }

    fn acquire(
        tables: &Self::Tables,
        context: AcquireContext<'_, Key, S>,
        _error: LookupError,
    ) -> (Decision, Vec<HeldLimit>) {
        with_limit_refs(&tables.now.load(), &context, |limits, steps| transaction::acquire(limits, steps, &context))
    }

    fn try_hold(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)> {
        let tables = tables.now.load();
        match &*tables.tables {
            [one] if !tables.has_conditions => one.try_hold(context),
            _ => None,
        }
    }

    fn peek(tables: &Self::Tables, context: AcquireContext<'_, Key, S>) -> Decision {
        with_limit_refs(&tables.now.load(), &context, |limits, steps| transaction::peek(limits, steps, &context))
    }

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key, S>)) {
        tables.now.load().tables.iter().for_each(|table| f(&**table));
    }
}

/// The maximum number of dynamic limits that a decision reads without an allocation.
const INLINE_LIMITS: usize = 8;

/// Runs `f` with references to the limits that apply to the key, and with one empty step for each.
#[inline]
fn with_limit_refs<Key: ?Sized, S, T>(
    tables: &DynTables<Key, S>,
    context: &AcquireContext<'_, Key, S>,
    f: impl FnOnce(&[&dyn TransactionLimit<Key, S>], &mut [LimitStep]) -> T,
) -> T {
    let &DynTables { ref tables, has_conditions, .. } = tables;
    let count = tables.len();
    let Some(first) = tables.first() else { return f(&[], &mut []) };
    if count > INLINE_LIMITS {
        let mut limits: Vec<&dyn TransactionLimit<Key, S>> = tables.iter().map(|table| &**table).collect();
        let limits = transaction::applying(&mut limits, context);
        return f(limits, &mut vec![LimitStep::EMPTY; limits.len()]);
    }
    let mut limits: [&dyn TransactionLimit<Key, S>; INLINE_LIMITS] = [&**first; INLINE_LIMITS];
    for (limit, table) in limits.iter_mut().zip(tables) {
        *limit = &**table;
    }
    let mut steps: [LimitStep; INLINE_LIMITS];
    let mut few_steps: [LimitStep; INLINE_LIMITS / 2];
    // A step is large, so a few limits initialize no more than they need.
    let steps: &mut [LimitStep] = if count <= INLINE_LIMITS / 2 {
        few_steps = [LimitStep::EMPTY; INLINE_LIMITS / 2];
        &mut few_steps
    } else {
        steps = [LimitStep::EMPTY; INLINE_LIMITS];
        &mut steps
    };
    let limits = if has_conditions { transaction::applying(&mut limits[..count], context) } else { &limits[..count] };
    f(limits, &mut steps[..limits.len()])
}
