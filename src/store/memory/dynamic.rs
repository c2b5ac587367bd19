//! Limits that are chosen, and changed, at run time.

use std::any::Any;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::hasher::DefaultHashBuilder;
use super::limits::{MemoryLimits, MemoryLimitsFor};
use super::row::Row;
use super::share::{Asked, HeldLimit, Holding, Look, Room, Share};
use super::transaction;
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{IntoLimit, Limit, SelectAlgorithm, SubKeyOf, check_unique_names};
use crate::table::Missed;

/// A limit of any kind, for those who choose limits at run time: collect them in a `Vec`.
///
/// Such limits can be [replaced](super::Memory::replace) while they are used. A decision over up to eight of them allocates
/// nothing.
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
pub struct DynLimit<Key: ?Sized, S = DefaultHashBuilder>(Box<dyn Bind<Key, S>>);

impl<Key: ?Sized, S: BuildHasher> DynLimit<Key, S> {
    /// Boxes a limit.
    pub fn new<L>(limit: L) -> Self
    where
        L: IntoLimit,
        L::Selector: SelectAlgorithm<Key> + Send + Sync + 'static,
        L::SubKeyFn: SubKeyOf<Key> + Send + Sync + 'static,
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

trait Bind<Key: ?Sized, S>: Send + Sync {
    fn name(&self) -> &str;
    fn bind(self: Box<Self>, room: Room, heir_of: Option<&dyn Any>) -> Result<DynRow<Key, S>, Error>;
}

impl<Key, S, C, P> Bind<Key, S> for Limit<C, P>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: Hash,
    S: BuildHasher,
{
    fn name(&self) -> &str {
        self.name()
    }

    fn bind(self: Box<Self>, room: Room, heir_of: Option<&dyn Any>) -> Result<DynRow<Key, S>, Error> {
        Ok(Arc::new(Row::heir(*self, room, heir_of)?))
    }
}

type DynRow<Key, S> = Arc<dyn Share<Key, S>>;

/// The limits as they are now.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct DynRows<Key: ?Sized, S> {
    now: ArcSwap<Vec<DynRow<Key, S>>>,
    /// One replacement at a time: each takes over from the one before.
    replacing: Mutex<()>,
    room: Room,
}

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> DynRows<Key, S> {
    /// Replaces the limits. A limit that has the name of a former one and is of its kind takes over what keys owe.
    pub(super) fn replace(&self, limits: Vec<DynLimit<Key, S>>) -> Result<(), Error> {
        let _one = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = bind(limits, self.room, &self.now.load_full())?;
        self.now.store(Arc::new(rows));
        Ok(())
    }
}

fn bind<Key: ?Sized, S: BuildHasher>(
    limits: Vec<DynLimit<Key, S>>,
    room: Room,
    former: &[DynRow<Key, S>],
) -> Result<Vec<DynRow<Key, S>>, Error> {
    if !(limits.is_empty() && room.allow_no_limits) {
        check_unique_names(limits.iter().map(DynLimit::name))?;
    }
    let bind = |limit: DynLimit<Key, S>| {
        let heir_of = former.iter().find(|row| row.name().as_str() == limit.name());
        limit.0.bind(room, heir_of.map(|row| row.as_any()))
    };
    limits.into_iter().map(bind).collect()
}

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> MemoryLimits<S> for Vec<DynLimit<Key, S>> {
    type Rows = DynRows<Key, S>;

    fn bind(self, room: Room) -> Result<Self::Rows, Error> {
        Ok(DynRows { now: ArcSwap::from_pointee(bind(self, room, &[])?), replacing: Mutex::default(), room })
    }

    fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding)) {
        rows.now.load().iter().for_each(|row| f(&**row));
    }
}

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> MemoryLimitsFor<Key, S> for Vec<DynLimit<Key, S>> {
    #[inline]
    fn at_once(_rows: &Self::Rows, _asked: &Asked<'_, Key, S>) -> Result<Decision, Missed> {
        Err(Missed::Absent)
    }

    fn at_length(rows: &Self::Rows, asked: Asked<'_, Key, S>, _missed: Missed) -> (Decision, Vec<HeldLimit>) {
        with_slices(&rows.now.load(), |rows, looks| transaction::acquire(rows, looks, &asked))
    }

    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        with_slices(&rows.now.load(), |rows, looks| transaction::peek(rows, looks, &asked))
    }

    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
        rows.now.load().iter().for_each(|row| f(&**row));
    }
}

/// So many dynamic limits are decided without an allocation.
const USUAL: usize = 8;

fn with_slices<Key: ?Sized, S, T>(
    rows: &[DynRow<Key, S>],
    f: impl FnOnce(&[&dyn Share<Key, S>], &mut [Look]) -> T,
) -> T {
    let Some(first) = rows.first() else { return f(&[], &mut []) };
    if rows.len() > USUAL {
        let rows: Vec<&dyn Share<Key, S>> = rows.iter().map(|row| &**row).collect();
        return f(&rows, &mut vec![Look::BLANK; rows.len()]);
    }
    let mut few: [&dyn Share<Key, S>; USUAL] = [&**first; USUAL];
    for (slot, row) in few.iter_mut().zip(rows) {
        *slot = &**row;
    }
    f(&few[..rows.len()], &mut [Look::BLANK; USUAL][..rows.len()])
}
