/// An `Option` whose drop glue is out of line, so that dropping `None` compiles to one branch: row "hot key" of
/// benches/figures.md, 138 instructions instead of 163.
///
/// The value is dropped by value. A call that takes a pointer would force the whole decision into memory, and keep the
/// compiler from removing fields that the caller does not read.
#[derive(Clone, PartialEq)]
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct ColdDrop<T>(Option<T>);

impl<T> ColdDrop<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Some(value))
    }

    #[inline]
    pub(super) const fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Drop for ColdDrop<T> {
    #[inline]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn drop_cold<T>(_: T) {}
        if let Some(value) = self.0.take() {
            drop_cold(value);
        }
    }
}
