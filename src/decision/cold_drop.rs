/// A value that is dropped by a call of its own, and by value: so to drop what holds nothing of the kind takes no
/// call, and no pointer to it. A compiler that sees a decision made and dropped can then leave out what nobody asks
/// of it.
#[derive(Clone, PartialEq)]
#[allow(unreachable_pub, missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct ColdDrop<T>(Option<T>);

impl<T> ColdDrop<T> {
    pub(super) const NOTHING: Self = Self(None);

    pub(super) const fn of(value: T) -> Self {
        Self(Some(value))
    }

    #[inline]
    pub(super) const fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Drop for ColdDrop<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Most decisions list no limits, and most names are constants.
        #[cold]
        #[inline(never)]
        fn drop_there<T>(_: T) {}
        if let Some(value) = self.0.take() {
            drop_there(value);
        }
    }
}
