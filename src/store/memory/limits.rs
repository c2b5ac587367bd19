use std::hash::{BuildHasher, Hash};

use super::row::Row;
use super::share::{Asked, Holding, Look, Room, Share};
use super::transaction;
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{Choose, IntoLimit, PartOf, names_differ};
use crate::limiter::{Outcome, Receipt};
use crate::table::Full;

/// What [`Memory`](super::Memory) can hold keys to: an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`DynLimit`](crate::DynLimit)s.
///
/// `S` is the type of the hasher.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limit that `Memory` can hold keys to",
    note = "give it an algorithm, `per_key(..)`, a `Limit`, a tuple of up to eight of these, or a `Vec<DynLimit<Key>>`"
)]
pub trait Limits<S>: Sized {
    /// The limits with their tables.
    #[doc(hidden)]
    type Rows: Send + Sync + 'static;

    #[doc(hidden)]
    fn bind(self, room: Room) -> Result<Self::Rows, Error>;

    #[doc(hidden)]
    fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding));
}

/// [`Limits`] that can hold keys of type `Key`.
pub trait LimitsFor<Key: ?Sized, S: BuildHasher>: Limits<S> {
    #[doc(hidden)]
    fn acquire(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Outcome;

    #[doc(hidden)]
    fn decide(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision;

    #[doc(hidden)]
    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision;

    #[doc(hidden)]
    fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64) -> Result<(), Full>;

    #[doc(hidden)]
    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>));
}

impl<L, S> Limits<S> for L
where
    L: IntoLimit,
    L::Chooser: Send + Sync + 'static,
    L::Part: Send + Sync + 'static,
{
    type Rows = Row<L::Chooser, L::Part>;

    fn bind(self, room: Room) -> Result<Self::Rows, Error> {
        let limit = self.into_limit();
        names_differ([limit.name()])?;
        Row::new(limit, room)
    }

    fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding)) {
        f(rows);
    }
}

impl<Key, L, S> LimitsFor<Key, S> for L
where
    Key: ?Sized,
    L: IntoLimit,
    L::Chooser: Choose<Key> + Send + Sync + 'static,
    L::Part: PartOf<Key> + Send + Sync + 'static,
    <L::Part as PartOf<Key>>::Part: Hash,
    S: BuildHasher,
{
    #[inline]
    fn acquire(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Outcome {
        let (rows, looks) = (&[rows], &mut [Look::BLANK]);
        let mut receipt = None;
        let decision = transaction::acquire(rows, looks, &asked, &mut receipt);
        Outcome { decision, receipt }
    }

    #[inline]
    fn decide(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        let (rows, looks) = (&[rows], &mut [Look::BLANK]);
        transaction::acquire(rows, looks, &asked, &mut ())
    }

    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        transaction::peek(&[rows], &mut [Look::BLANK], &asked)
    }

    fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64) -> Result<(), Full> {
        transaction::settle(&[rows], asked, receipt, actual)
    }

    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
        f(rows);
    }
}

macro_rules! tuple {
    ($count:literal: $($L:ident $index:tt),+) => {
        impl<S, $($L: IntoLimit),+> Limits<S> for ($($L,)+)
        where
            $($L::Chooser: Send + Sync + 'static, $L::Part: Send + Sync + 'static,)+
        {
            type Rows = ($(Row<$L::Chooser, $L::Part>,)+);

            fn bind(self, room: Room) -> Result<Self::Rows, Error> {
                let limits = ($(self.$index.into_limit(),)+);
                names_differ([$(limits.$index.name()),+])?;
                Ok(($(Row::new(limits.$index, room)?,)+))
            }

            fn holdings(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Holding)) {
                $(f(&rows.$index);)+
            }
        }

        impl<Key, S, $($L: IntoLimit),+> LimitsFor<Key, S> for ($($L,)+)
        where
            Key: ?Sized,
            S: BuildHasher,
            $(
                $L::Chooser: Choose<Key> + Send + Sync + 'static,
                $L::Part: PartOf<Key> + Send + Sync + 'static,
                <$L::Part as PartOf<Key>>::Part: Hash,
            )+
        {
            fn acquire(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Outcome {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                let looks = &mut [Look::BLANK; $count];
                let mut receipt = None;
                let decision = transaction::acquire(&rows, looks, &asked, &mut receipt);
                Outcome { decision, receipt }
            }

            fn decide(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                let looks = &mut [Look::BLANK; $count];
                transaction::acquire(&rows, looks, &asked, &mut ())
            }

            fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::peek(&rows, &mut [Look::BLANK; $count], &asked)
            }

            fn settle(
                rows: &Self::Rows,
                asked: &Asked<'_, Key, S>,
                receipt: &Receipt,
                actual: u64,
            ) -> Result<(), Full> {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::settle(&rows, asked, receipt, actual)
            }

            fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
                $(f(&rows.$index);)+
            }
        }
    };
}

tuple!(1: A 0);
tuple!(2: A 0, B 1);
tuple!(3: A 0, B 1, C 2);
tuple!(4: A 0, B 1, C 2, D 3);
tuple!(5: A 0, B 1, C 2, D 3, E 4);
tuple!(6: A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(7: A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
