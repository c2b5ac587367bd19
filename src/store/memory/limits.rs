use std::hash::{BuildHasher, Hash};

use super::dynamic::DynLimit;
use super::row::{Asked, Look, Room, Row, Share};
use super::transaction;
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{Choose, IntoLimit, PartOf};
use crate::limiter::{Outcome, Receipt};

/// What [`Memory`](super::Memory) can hold keys to: an algorithm, [`per_key`](crate::per_key), a
/// [`Limit`](crate::Limit), a tuple of up to eight of these, or a `Vec` of [`DynLimit`]s.
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
}

/// [`Limits`] that can hold keys of type `Key`.
pub trait LimitsFor<Key: ?Sized, S: BuildHasher>: Limits<S> {
    #[doc(hidden)]
    fn acquire(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Outcome;

    #[doc(hidden)]
    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision;

    #[doc(hidden)]
    fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64);

    #[doc(hidden)]
    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>));
}

impl<L, S> Limits<S> for L
where
    L: IntoLimit,
    Row<L::Chooser, L::Part>: Send + Sync + 'static,
{
    type Rows = Row<L::Chooser, L::Part>;

    fn bind(self, room: Room) -> Result<Self::Rows, Error> {
        let limit = self.into_limit();
        names_differ([limit.name()])?;
        Row::new(limit, room)
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
        transaction::acquire(&[rows], &mut [Look::BLANK], asked)
    }

    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        transaction::peek(&[rows], &mut [Look::BLANK], asked)
    }

    fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64) {
        transaction::settle(&[rows], asked, receipt, actual);
    }

    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
        f(rows);
    }
}

macro_rules! tuple {
    ($count:literal: $($L:ident $index:tt),+) => {
        impl<S, $($L: IntoLimit),+> Limits<S> for ($($L,)+)
        where
            $(Row<$L::Chooser, $L::Part>: Send + Sync + 'static,)+
        {
            type Rows = ($(Row<$L::Chooser, $L::Part>,)+);

            fn bind(self, room: Room) -> Result<Self::Rows, Error> {
                let limits = ($(self.$index.into_limit(),)+);
                names_differ([$(limits.$index.name()),+])?;
                Ok(($(Row::new(limits.$index, room)?,)+))
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
                transaction::acquire(&rows, &mut [Look::BLANK; $count], asked)
            }

            fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::peek(&rows, &mut [Look::BLANK; $count], asked)
            }

            fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64) {
                let rows: [&dyn Share<Key, S>; $count] = [$(&rows.$index),+];
                transaction::settle(&rows, asked, receipt, actual);
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

type DynRow<Key, S> = Box<dyn Share<Key, S>>;

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> Limits<S> for Vec<DynLimit<Key, S>> {
    type Rows = Vec<DynRow<Key, S>>;

    fn bind(self, room: Room) -> Result<Self::Rows, Error> {
        names_differ(self.iter().map(DynLimit::name))?;
        self.into_iter().map(|limit| limit.bind(room)).collect()
    }
}

/// So many dynamic limits are decided without an allocation.
const USUAL: usize = 8;

impl<Key: ?Sized + 'static, S: BuildHasher + 'static> LimitsFor<Key, S> for Vec<DynLimit<Key, S>> {
    fn acquire(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Outcome {
        with_slices(rows, |rows, looks| transaction::acquire(rows, looks, asked))
    }

    fn peek(rows: &Self::Rows, asked: Asked<'_, Key, S>) -> Decision {
        with_slices(rows, |rows, looks| transaction::peek(rows, looks, asked))
    }

    fn settle(rows: &Self::Rows, asked: &Asked<'_, Key, S>, receipt: &Receipt, actual: u64) {
        with_slices(rows, |rows, _| transaction::settle(rows, asked, receipt, actual));
    }

    fn each(rows: &Self::Rows, f: &mut dyn FnMut(&dyn Share<Key, S>)) {
        rows.iter().for_each(|row| f(&**row));
    }
}

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

/// Refuses two limits of one name: their header fields and figures could not be told apart.
fn names_differ<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Error::config("a limit has an empty name: give it one that clients may see"));
        }
        if !seen.insert(name) {
            return Err(Error::config(format!("two limits are named {name:?}: give each its own with `Limit::new`")));
        }
    }
    Ok(())
}
