use std::hash::Hash;

use super::chain::{self, PartList, with_parts_of};
use super::charged;
use super::limit_table::KeyedTable;
use super::plain::{self, PlainLimit};
use super::transaction_limit::{AcquireContext, Capacity, NotDecided, TransactionLimit, read_clock};
use crate::algorithm::Algorithm as _;
use crate::decision::{Decision, Detail, Verdict};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, IntoLimit, SelectAlgorithm, SubKeyOf};
use crate::limiter::Held;
use crate::store::inner::check_limits;

/// The limits of a [`Memory`](super::Memory) for keys of type `Key`: an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`DynLimit`](crate::DynLimit)s.
///
/// `S` is the type of the hasher.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit that `Memory` can apply to keys of type `{Key}`",
    note = "use an algorithm, `per_key(..)`, a `Limit`, a tuple of up to eight of these, or a `Vec<DynLimit<Key>>`; \
            their sub-keys must be `Hash`"
)]
pub trait MemoryLimits<Key: ?Sized>: Sized {
    /// The limits with their tables.
    type Tables: Send + Sync + 'static;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error>;

    /// Decides on the fast path. An error charges nothing.
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key>) -> Result<Decision, NotDecided>;

    /// Decides what [`try_acquire`](Self::try_acquire) leaves, if it needs no transaction. Adds to `held` what the request
    /// holds; without it, leaves a hold to the transaction.
    fn try_complete(
        tables: &Self::Tables,
        context: &AcquireContext<'_, Key>,
        held: Option<&mut Held>,
    ) -> Option<Decision>;

    /// Runs `f` on the parts of the limits that apply, in their order.
    fn with_parts(tables: &Self::Tables, context: &AcquireContext<'_, Key>, f: &mut dyn FnMut(Option<&PartList<'_>>));

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key>));

    /// Returns whether a limit counts requests in flight.
    fn has_flights(tables: &Self::Tables) -> bool;
}

impl<Key, L> MemoryLimits<Key> for L
where
    Key: ?Sized,
    L: IntoLimit,
    L::Selector: SelectAlgorithm<Key>,
    L::SubKeyFn: SubKeyOf<Key>,
    <L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
{
    type Tables = KeyedTable<L::Selector, L::SubKeyFn>;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
        let limit = self.into_limit();
        let shares = check_limits(&[limit.facts::<Key>()])?;
        KeyedTable::new::<Key>(limit.beside(shares), capacity)
    }

    // Row "hot key" of benches/figures.md.
    #[inline(always)]
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key>) -> Result<Decision, NotDecided> {
        plain::try_acquire(tables, context)
    }

    fn try_complete(
        tables: &Self::Tables,
        context: &AcquireContext<'_, Key>,
        held: Option<&mut Held>,
    ) -> Option<Decision> {
        plain::try_complete(tables, context, held)
    }

    fn with_parts(tables: &Self::Tables, context: &AcquireContext<'_, Key>, f: &mut dyn FnMut(Option<&PartList<'_>>)) {
        with_parts_of(&[tables as &dyn TransactionLimit<Key>], context, None, f);
    }

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key>)) {
        f(tables);
    }

    fn has_flights(_: &Self::Tables) -> bool {
        <L::Selector as AlgorithmSelector>::Algorithm::HELD_UNTIL_END
    }
}

/// Charges the limits of a tuple that apply, unless one of them does not allow the request immediately. Returns the time, and
/// what was charged.
macro_rules! charge_plain {
    ($all:literal, $tables:expr, $context:expr, $error:expr, $($limit:ident $keys:ident $charged:ident $index:tt),+) => {{
        // Functions of users run before any lock.
        #[allow(unused_mut, reason = "only requests of all kinds borrow")]
        $(let mut $limit = PlainLimit::new::<$all, _, _>(&$tables.$index, $context).ok_or($error)?;)+
        $(let mut $keys = $limit.as_ref().map(|limit| limit.lock());)+
        let mut last = 0;
        $(last = last.max($keys.as_ref().map_or(0, |keys| keys.last_decided_at()));)+
        let read = $context.now;
        let now = if read.as_micros() < last { read_clock($context.clock) } else { read };
        $(if let Some(keys) = &mut $keys { keys.set_last_decided_at(now); })+
        if $all {
            let mut borrows = false;
            $(borrows |= PlainLimit::borrows($limit.as_ref(), &$tables.$index.table, $keys.as_mut(), now).ok_or($error)?;)+
            // A decision that lists limits lists the share, too: by the transaction.
            let lists = $context.options.lists_all(Verdict::Allowed) $(|| $tables.$index.table.limit.is_shadow())+;
            if borrows && (lists || !(false $(|| $limit.as_ref().is_some_and(PlainLimit::lends))+)) {
                return Err($error);
            }
            $(if let Some(limit) = &mut $limit { limit.borrows = borrows; })+
        }
        $(let $charged = match (&$limit, &mut $keys) {
            (Some(limit), Some(keys)) if !limit.is_borrowed() => Some(limit.decide::<$all>(keys, now).ok_or($error)?),
            _ => None,
        };)+
        $(let $charged = match (&$limit, $charged) {
            (Some(limit), Some(allowed)) => Some(limit.charge::<$all>(allowed, now)),
            _ => None,
        };)+
        // All limits stay locked until all are charged.
        $(drop($keys);)+
        (now, ($($charged,)+))
    }};
}

macro_rules! tuple {
    ($count:literal: $($L:ident $limit:ident $keys:ident $charged:ident $index:tt),+) => {
        impl<Key, $($L: IntoLimit),+> MemoryLimits<Key> for ($($L,)+)
        where
            Key: ?Sized,
            $(
                $L::Selector: SelectAlgorithm<Key>,
                $L::SubKeyFn: SubKeyOf<Key>,
                <$L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
            )+
        {
            type Tables = ($(KeyedTable<$L::Selector, $L::SubKeyFn>,)+);

            // In the order of the tuple, so that the ids of the tables have this order.
            fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
                let limits = ($(self.$index.into_limit(),)+);
                let shares = check_limits(&[$(limits.$index.facts::<Key>()),+])?;
                Ok(($(KeyedTable::new::<Key>(limits.$index.beside(shares), capacity)?,)+))
            }

            // Row "three limits" of benches/figures.md: the transaction takes six times the instructions.
            #[inline(always)]
            fn try_acquire(
                tables: &Self::Tables,
                context: &AcquireContext<'_, Key>,
            ) -> Result<Decision, NotDecided> {
                let options = context.options;
                if options.detail == Detail::All || options.hold || options.has_units() {
                    return Err(NotDecided::NotApplicable);
                }
                let (now, charged) = charge_plain!(false, tables, context, NotDecided::NotApplicable,
                    $($limit $keys $charged $index),+);
                let ($($charged,)+) = charged;
                let supports_scheduling = true
                    $(&& $charged.as_ref().is_none_or(|charged| charged.supports_scheduling))+;
                // The most restrictive limit has the least remaining. Of equals, it is the first one. Compared one by
                // one: row "three limits" of benches/figures.md, 518 instructions instead of 586 with an array.
                let mut least = (usize::MAX, u64::MAX);
                $(
                    if let Some(charged) = &$charged {
                        let remaining = charged.remaining();
                        if least.0 == usize::MAX || remaining < least.1 {
                            least = ($index, remaining);
                        }
                    }
                )+
                let status = match least.0 {
                    $($index => $charged.map(|charged| charged.status()),)+
                    _ => None,
                };
                // Without a limit that applies, the transaction exempts the request.
                let status = status.ok_or(NotDecided::NotApplicable)?;
                Ok(Decision::from_store(now, supports_scheduling, status))
            }

            fn try_complete(
                tables: &Self::Tables,
                context: &AcquireContext<'_, Key>,
                held: Option<&mut Held>,
            ) -> Option<Decision> {
                // Without holds: row "shadow" of benches/figures.md, 1.5 times as long by the chain.
                if !context.options.hold && !<Self as MemoryLimits<Key>>::has_flights(tables) {
                    let charged = (|| Ok::<_, ()>(charge_plain!(true, tables, context, (),
                        $($limit $keys $charged $index),+)))();
                    let (now, ($($charged,)+)) = charged.ok()?;
                    return charged::decision([$($charged),+], now, context.options.lists_all(Verdict::Allowed));
                }
                let limits = [$(&tables.$index as &dyn TransactionLimit<Key>),+];
                chain::try_limits(&limits, context, held)
            }

            fn with_parts(
                tables: &Self::Tables,
                context: &AcquireContext<'_, Key>,
                f: &mut dyn FnMut(Option<&PartList<'_>>),
            ) {
                with_parts_of(&[$(&tables.$index as &dyn TransactionLimit<Key>),+], context, None, f);
            }

            fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key>)) {
                $(f(&tables.$index);)+
            }

            fn has_flights(_: &Self::Tables) -> bool {
                false $(|| <$L::Selector as AlgorithmSelector>::Algorithm::HELD_UNTIL_END)+
            }
        }
    };
}

tuple!(1: A a a_keys a_charged 0);
tuple!(2: A a a_keys a_charged 0, B b b_keys b_charged 1);
tuple!(3: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2);
tuple!(4: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2, D d d_keys d_charged 3);
tuple!(5: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2, D d d_keys d_charged 3,
    E e e_keys e_charged 4);
tuple!(6: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2, D d d_keys d_charged 3,
    E e e_keys e_charged 4, F f f_keys f_charged 5);
tuple!(7: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2, D d d_keys d_charged 3,
    E e e_keys e_charged 4, F f f_keys f_charged 5, G g g_keys g_charged 6);
tuple!(8: A a a_keys a_charged 0, B b b_keys b_charged 1, C c c_keys c_charged 2, D d d_keys d_charged 3,
    E e e_keys e_charged 4, F f f_keys f_charged 5, G g g_keys g_charged 6, H h h_keys h_charged 7);

/// The maximum number of limits of a decision that allocates nothing.
pub(super) const INLINE_LIMITS: usize = 8;
