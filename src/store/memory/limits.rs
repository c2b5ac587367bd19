use std::hash::{BuildHasher, Hash};

use super::alone::{self, Passing};
use super::row::Row;
use super::share::{Asked, HeldLimit, Holding, Look, Room, Share};
use super::transaction;
use crate::decision::{Decision, Detail};
use crate::error::Error;
use crate::limit::{IntoLimit, SelectAlgorithm, SubKeyOf, check_unique_names};
use crate::table::Missed;

/// What [`Memory`](super::Memory) can hold keys to: an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`DynLimit`](crate::DynLimit)s.
///
/// `S` is the type of the hasher.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit that `Memory` can hold keys to",
    note = "give it an algorithm, `per_key(..)`, a `Limit`, a tuple of up to eight of these, or a `Vec<DynLimit<Key>>`"
)]
pub trait MemoryLimits<S>: Sized {
    /// The limits with their tables.
    #[doc(hidden)]
    type Rows: Send + Sync + 'static;

    #[doc(hidden)]
    fn bind(self, room: Room) -> Result<Self::Rows, Error>;

    #[doc(hidden)]
    fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding));
}

/// [`MemoryLimits`] that can hold keys of type `Key`.
pub trait MemoryLimitsFor<Key: ?Sized, S: BuildHasher>: MemoryLimits<S> {
    /// What can be decided on the straight way. An error says nothing but whether to look there once more.
    #[doc(hidden)]
    fn at_once(rows: &Self::Rows, asked: &Asked<'_, Key, S>) -> Result<Decision, Missed>;

    /// Decides in any case. Returns the limits too on which the cost of an allowed request is held.
    ///
    /// `asked` goes by value: lent to a function that is not in line, it would have to lie in memory.
    #[doc(hidden)]
    fn at_length(rows: &Self::Rows, asked: Asked<'_, Key, S>, missed: Missed) -> (Decision, Vec<HeldLimit>);

    #[doc(hidden)]
    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision;

    #[doc(hidden)]
    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>));
}

impl<L, S> MemoryLimits<S> for L
where
    L: IntoLimit,
    L::Selector: Send + Sync + 'static,
    L::SubKeyFn: Send + Sync + 'static,
{
    type Rows = Row<L::Selector, L::SubKeyFn>;

    fn bind(self, room: Room) -> Result<Self::Rows, Error> {
        let limit = self.into_limit();
        check_unique_names([limit.name()])?;
        Row::new(limit, room)
    }

    fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding)) {
        f(rows);
    }
}

impl<Key, L, S> MemoryLimitsFor<Key, S> for L
where
    Key: ?Sized,
    L: IntoLimit,
    L::Selector: SelectAlgorithm<Key> + Send + Sync + 'static,
    L::SubKeyFn: SubKeyOf<Key> + Send + Sync + 'static,
    <L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
    S: BuildHasher,
{
    #[inline(always)]
    fn at_once(rows: &Self::Rows, asked: &Asked<'_, Key, S>) -> Result<Decision, Missed> {
        alone::at_once(rows, asked)
    }

    fn at_length(rows: &Self::Rows, asked: Asked<'_, Key, S>, missed: Missed) -> (Decision, Vec<HeldLimit>) {
        alone::at_length(rows, asked, missed)
    }

    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        transaction::peek(&[rows], &mut [Look::BLANK], &asked)
    }

    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
        f(rows);
    }
}

macro_rules! tuple {
    ($count:literal: $($L:ident $row:ident $index:tt),+) => {
        impl<S, $($L: IntoLimit),+> MemoryLimits<S> for ($($L,)+)
        where
            $($L::Selector: Send + Sync + 'static, $L::SubKeyFn: Send + Sync + 'static,)+
        {
            type Rows = ($(Row<$L::Selector, $L::SubKeyFn>,)+);

            fn bind(self, room: Room) -> Result<Self::Rows, Error> {
                let limits = ($(self.$index.into_limit(),)+);
                check_unique_names([$(limits.$index.name()),+])?;
                Ok(($(Row::new(limits.$index, room)?,)+))
            }

            fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding)) {
                $(f(&rows.$index);)+
            }
        }

        impl<Key, S, $($L: IntoLimit),+> MemoryLimitsFor<Key, S> for ($($L,)+)
        where
            Key: ?Sized,
            S: BuildHasher,
            $(
                $L::Selector: SelectAlgorithm<Key> + Send + Sync + 'static,
                $L::SubKeyFn: SubKeyOf<Key> + Send + Sync + 'static,
                <$L::SubKeyFn as SubKeyOf<Key>>::SubKey: Hash,
            )+
        {
            /// If all rows let through at once: reads all, locks all, charges all.
            #[inline(always)]
            fn at_once(rows: &Self::Rows, asked: &Asked<'_, Key, S>) -> Result<Decision, Missed> {
                let (now, ask) = (asked.now, asked.ask);
                if ask.detail == Detail::All || ask.hold {
                    return Err(Missed::Absent);
                }
                $(let $row = Passing::of(&rows.$index, asked).ok_or(Missed::Absent)?;)+
                $(let $row = $row.lock().ok_or(Missed::Absent)?;)+
                // All stay locked until all are charged.
                $(let $row = $row.charge();)+
                $(let $row = { drop($row.0); $row.1 };)+
                // The one with the least remaining speaks, the first of equals.
                let least = [$($row.remaining(now)),+].into_iter().enumerate().min_by_key(|&(_, left)| left);
                let standing = match least.map_or(0, |(speaks, _)| speaks) {
                    $($index => $row.standing(now),)+
                    _ => unreachable!("there are no more rows"),
                };
                Ok(Decision::from_store(now, true $(&& $row.supports_scheduling())+, standing))
            }

            fn at_length(
                rows: &Self::Rows,
                asked: Asked<'_, Key, S>,
                _missed: Missed,
            ) -> (Decision, Vec<HeldLimit>) {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::acquire(&rows, &mut [Look::BLANK; $count], &asked)
            }

            fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::peek(&rows, &mut [Look::BLANK; $count], &asked)
            }

            fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
                $(f(&rows.$index);)+
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
