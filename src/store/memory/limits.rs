use std::hash::{BuildHasher, Hash};

use super::decide::{self, Prepared};
use super::limit_table::{CellOf, LimitTable};
use super::transaction;
use super::transaction_limit::{AcquireContext, Capacity, HeldLimit, LimitStep, TransactionLimit};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, Detail, Verdict};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, IntoLimit, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{AtomicState, check_limits, table::LookupError};

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
pub trait MemoryLimits<Key: ?Sized, S>: Sized {
    /// The limits with their tables.
    type Tables: Send + Sync + 'static;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error>;

    /// Returns whether a limit [holds](Algorithm::HELD_UNTIL_END) every cost until the request ends.
    fn is_held_until_end(tables: &Self::Tables) -> bool;

    /// Decides on the fast path. An error charges nothing.
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Result<Decision, LookupError>;

    /// Decides any request, after [`try_acquire`](Self::try_acquire) returned `error`. Returns the limits on which the
    /// cost is held as well.
    ///
    /// `context` is passed by value: a reference would force the context of the fast path into memory.
    fn acquire(
        tables: &Self::Tables,
        context: AcquireContext<'_, Key, S>,
        error: LookupError,
    ) -> (Decision, Vec<HeldLimit>);

    /// Holds the cost of a request, if there is one limit and it needs no transaction. `None` leaves the request to
    /// [`acquire`](Self::acquire).
    fn try_hold(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)> {
        let _ = (tables, context);
        None
    }

    fn peek(tables: &Self::Tables, context: AcquireContext<'_, Key, S>) -> Decision;

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key, S>));
}

impl<Key, L, S> MemoryLimits<Key, S> for L
where
    Key: ?Sized,
    L: IntoLimit,
    L::Selector: SelectAlgorithm<Key>,
    L::SubKeyFn: SubKeyOf<Key>,
    <L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
    S: BuildHasher,
{
    type Tables = LimitTable<L::Selector, L::SubKeyFn>;

    fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
        let limit = self.into_limit();
        let shares = check_limits(&[limit.facts::<Key>()])?;
        LimitTable::new(limit.beside(shares), capacity)
    }

    fn is_held_until_end(_tables: &Self::Tables) -> bool {
        <L::Selector as AlgorithmSelector>::Algorithm::HELD_UNTIL_END
    }

    // Row "hot key" of docs/performance.md.
    #[inline(always)]
    fn try_acquire(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Result<Decision, LookupError> {
        decide::try_acquire::<false, _, _, _, _>(tables, context)
    }

    fn acquire(
        tables: &Self::Tables,
        context: AcquireContext<'_, Key, S>,
        error: LookupError,
    ) -> (Decision, Vec<HeldLimit>) {
        decide::acquire_slow(tables, context, error)
    }

    #[inline]
    fn try_hold(tables: &Self::Tables, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)> {
        tables.try_hold(context)
    }

    fn peek(tables: &Self::Tables, context: AcquireContext<'_, Key, S>) -> Decision {
        let (mut limits, mut steps) = ([tables], [LimitStep::EMPTY]);
        let limits = transaction::applying(&mut limits, &context);
        transaction::peek(limits, &mut steps[..limits.len()], &context)
    }

    fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key, S>)) {
        f(tables);
    }
}

macro_rules! tuple {
    ($count:literal: $($L:ident $table:ident $index:tt),+) => {
        impl<Key, S, $($L: IntoLimit),+> MemoryLimits<Key, S> for ($($L,)+)
        where
            Key: ?Sized,
            S: BuildHasher,
            $(
                $L::Selector: SelectAlgorithm<Key>,
                $L::SubKeyFn: SubKeyOf<Key>,
                <$L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
            )+
        {
            type Tables = ($(LimitTable<$L::Selector, $L::SubKeyFn>,)+);

            fn build(self, capacity: Capacity) -> Result<Self::Tables, Error> {
                let limits = ($(self.$index.into_limit(),)+);
                let shares = check_limits(&[$(limits.$index.facts::<Key>()),+])?;
                Ok(($(LimitTable::new(limits.$index.beside(shares), capacity)?,)+))
            }

            fn is_held_until_end(_tables: &Self::Tables) -> bool {
                false $(|| <$L::Selector as AlgorithmSelector>::Algorithm::HELD_UNTIL_END)+
            }

            // Row "three limits" of docs/performance.md: the transaction takes six times the instructions.
            #[inline(always)]
            fn try_acquire(
                tables: &Self::Tables,
                context: &AcquireContext<'_, Key, S>,
            ) -> Result<Decision, LookupError> {
                let (now, options) = (context.now, context.options);
                if options.detail == Detail::All || options.hold || options.has_units() {
                    return Err(LookupError::NotApplicable);
                }
                let mut states = ($(CellOf::<$L::Selector>::empty(),)+);
                $(let $table =
                    Prepared::new::<false, _, _, _, _>(&tables.$index, context, &mut states.$index).ok_or(LookupError::NotApplicable)?;)+
                $(let $table = $table.lock().ok_or(LookupError::NotApplicable)?;)+
                // All limits stay locked until all are charged.
                $(let $table = $table.charge(now, &mut states.$index);)+
                $(let $table = { drop($table.0); $table.1 };)+
                let supports_scheduling = true $(&& $table.supports_scheduling)+;
                // The most restrictive limit has the least remaining. Of equals, it is the first one. Compared one by
                // one: row "three limits" of docs/performance.md, 518 instructions instead of 586 with an array.
                let mut least = (0, u64::MAX);
                $(
                    let remaining = $table.remaining();
                    if remaining < least.1 {
                        least = ($index, remaining);
                    }
                )+
                let status = match least.0 {
                    $($index => $table.status(),)+
                    _ => unreachable!("there are no more limits"),
                };
                Ok(Decision::from_store(now, supports_scheduling, status))
            }

            fn acquire(
                tables: &Self::Tables,
                context: AcquireContext<'_, Key, S>,
                _error: LookupError,
            ) -> (Decision, Vec<HeldLimit>) {
                // Apart from the fast path, which keeps its limits in registers: row "three limits" of docs/performance.md.
                let lists_all = $count > 1 && context.options.lists_all(Verdict::Allowed);
                let lists = lists_all $(|| tables.$index.limit.is_shadow())+;
                let (now, options) = (context.now, context.options);
                if lists && !(options.hold || options.has_units() || context.credit.is_some()) {
                    let mut states = ($(CellOf::<$L::Selector>::empty(),)+);
                    let charged = (|| {
                        $(let $table = Prepared::new::<true, _, _, _, _>(&tables.$index, &context, &mut states.$index)?;)+
                        $(let $table = $table.lock()?;)+
                        Some(($($table,)+))
                    })();
                    if let Some(($($table,)+)) = charged {
                        $(let $table = $table.charge(now, &mut states.$index);)+
                        $(let $table = { drop($table.0); $table.1 };)+
                        let supports_scheduling = true $(&& $table.supports_scheduling)+;
                        return (decide::listed(&[$($table),+], now, supports_scheduling, lists_all), Vec::new());
                    }
                }
                let mut limits: [&dyn TransactionLimit<Key, S>; $count] = [$(&tables.$index),+];
                let limits = transaction::applying(&mut limits, &context);
                transaction::acquire(limits, &mut [LimitStep::EMPTY; $count][..limits.len()], &context)
            }

            fn peek(tables: &Self::Tables, context: AcquireContext<'_, Key, S>) -> Decision {
                let mut limits: [&dyn TransactionLimit<Key, S>; $count] = [$(&tables.$index),+];
                let limits = transaction::applying(&mut limits, &context);
                transaction::peek(limits, &mut [LimitStep::EMPTY; $count][..limits.len()], &context)
            }

            fn for_each(tables: &Self::Tables, f: &mut dyn FnMut(&dyn TransactionLimit<Key, S>)) {
                $(f(&tables.$index);)+
            }
        }
    };
}

tuple!(1: A a 0);
tuple!(2: A a 0, B b 1);
tuple!(3: A a 0, B b 1, C c 2);
tuple!(4: A a 0, B b 1, C c 2, D d 3);
tuple!(5: A a 0, B b 1, C c 2, D d 3, E e 4);
tuple!(6: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5);
tuple!(7: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6);
tuple!(8: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7);
