//! Limits that are chosen and replaced at run time.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::chain::{self, PartList, with_parts_of};
use super::limit_table::KeyedTable;
use super::limits::MemoryLimits;
use super::transaction_limit::{AcquireContext, Capacity, NotDecided, TransactionLimit};
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{IntoLimit, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::Held;
use crate::store::inner::{LimitFacts, Shares, check_limits};

/// A limit of any type, for limits that are chosen at run time: collect them in a `Vec`.
///
/// Such limits can be [replaced](super::Memory::replace) while they are used. A decision over up to eight of them
/// allocates nothing.
///
/// `store::RedisLimit` and [`store::StoreLimit`](crate::store::StoreLimit) are other types, so that the compiler checks what
/// a shared store needs: an encoding of the sub-key, and for Redis a Lua implementation of the algorithm.
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
pub struct DynLimit<Key: ?Sized>(Box<dyn BuildLimit<Key>>);

impl<Key: ?Sized> DynLimit<Key> {
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

impl<Key: ?Sized> fmt::Debug for DynLimit<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynLimit").finish_non_exhaustive()
    }
}

trait BuildLimit<Key: ?Sized>: Send + Sync {
    fn name(&self) -> &str;
    fn facts(&self) -> LimitFacts;
    fn build(
        self: Box<Self>,
        shares: Option<Shares>,
        capacity: Capacity,
        previous: Option<&dyn Any>,
    ) -> Result<DynLimitTable<Key>, Error>;
}

impl<Key, C, P> BuildLimit<Key> for Limit<C, P>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
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
    ) -> Result<DynLimitTable<Key>, Error> {
        Ok(Arc::new(KeyedTable::replacing::<Key>(self.beside(shares), capacity, previous)?))
    }
}

type DynLimitTable<Key> = Arc<dyn TransactionLimit<Key>>;

/// The present limits.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct DynLimits<Key: ?Sized> {
    now: ArcSwap<Present<Key>>,
    /// Serialises replacements: each takes over the tables of the one before.
    replace_lock: Mutex<()>,
    capacity: Capacity,
}

struct Present<Key: ?Sized> {
    tables: Vec<DynLimitTable<Key>>,
    /// A limit counts requests in flight.
    has_flights: bool,
}

impl<Key: ?Sized + 'static> DynLimits<Key> {
    /// Replaces the limits. A limit with the name and the type of a previous one takes over its table.
    pub(super) fn replace(&self, limits: Vec<DynLimit<Key>>) -> Result<(), Error> {
        let _one = self.replace_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let present = build(limits, self.capacity, &self.now.load_full().tables)?;
        // Decisions under way finish with the limits that they have loaded. Kept tables are shared, so their charges
        // count.
        self.now.store(Arc::new(present));
        Ok(())
    }
}

fn build<Key: ?Sized>(
    limits: Vec<DynLimit<Key>>,
    capacity: Capacity,
    previous: &[DynLimitTable<Key>],
) -> Result<Present<Key>, Error> {
    let facts: Vec<_> = limits.iter().map(|limit| limit.0.facts()).collect();
    let shares = if limits.is_empty() && capacity.allow_no_limits { None } else { check_limits(&facts)? };
    let build = |limit: DynLimit<Key>| {
        let previous = previous.iter().find(|table| table.info().name().as_str() == limit.name());
        limit.0.build(shares, capacity, previous.map(|table| table.as_any()))
    };
    let tables: Vec<_> = limits.into_iter().map(build).collect::<Result<_, Error>>()?;
    let has_flights = tables.iter().any(|table| table.info().is_held_until_end());
    Ok(Present { tables, has_flights })
}

impl<Key: ?Sized + 'static> MemoryLimits<Key> for Vec<DynLimit<Key>> {
    type Tables = DynLimits<Key>;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
        Ok(DynLimits {
            now: ArcSwap::from_pointee(build(self, capacity, &[])?),
            replace_lock: Mutex::default(),
            capacity,
        })
    }

    #[inline]
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key>) -> Result<Decision, NotDecided> {
        let (present, options) = (tables.now.load(), &context.options);
        match present.tables.as_slice() {
            [one] => one.try_acquire(context),
            // Row "memory Vec of two limits" of benches/figures.md: 1.09 times as long by `try_complete`, and 1.2 times in
            // the layer.
            tables if !options.hold && !options.has_units() && (options.keeps_guard || !present.has_flights) => {
                chain::try_limits(tables, context, None).ok_or(NotDecided::NotApplicable)
            }
            _ => Err(NotDecided::NotApplicable),
        }
    }

    fn try_complete(
        tables: &Self::Tables,
        context: &AcquireContext<'_, Key>,
        held: Option<&mut Held>,
    ) -> Option<Decision> {
        match tables.now.load().tables.as_slice() {
            [one] => one.try_complete(context, held),
            // `try_acquire` has tried it.
            _ if held.is_none() && !context.options.has_units() => None,
            tables => chain::try_limits(tables, context, held),
        }
    }

    fn with_parts(tables: &Self::Tables, context: &AcquireContext<'_, Key>, f: &mut dyn FnMut(Option<&PartList<'_>>)) {
        with_parts_of(&tables.now.load().tables, context, None, f);
    }

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key>)) {
        tables.now.load().tables.iter().for_each(|table| f(&**table));
    }

    fn has_flights(tables: &Self::Tables) -> bool {
        tables.now.load().has_flights
    }
}
