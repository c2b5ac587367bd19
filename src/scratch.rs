//! Values that a thread keeps, to save allocations.

use std::cell::Cell;
use std::thread::LocalKey;

/// Passes the value that the thread keeps.
///
/// The value is taken while it is used. So a nested call, and a call while the thread ends, get a default one.
#[inline]
pub(crate) fn with_scratch<T: Default, R>(kept: &'static LocalKey<Cell<T>>, f: impl FnOnce(&mut T) -> R) -> R {
    let mut value = kept.try_with(Cell::take).unwrap_or_default();
    let result = f(&mut value);
    let _ = kept.try_with(|cell| cell.set(value));
    result
}
