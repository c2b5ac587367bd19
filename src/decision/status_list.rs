use std::cell::Cell;
use std::slice;

use super::status::LimitStatus;

/// The limits that a decision lists, if it lists any.
///
/// A thread keeps the list of a dropped decision for a later one, so a decision that lists its limits allocates nothing.
/// Row "shadow" of benches/figures.md: 14 times a decision without the shadow, and two allocations, if each decision
/// allocates its list.
#[derive(PartialEq)]
pub(crate) struct StatusList(Option<List>);

// One word instead of three in every decision: few decisions list their limits.
type List = Box<Vec<LimitStatus>>;

thread_local! {
    static SPARE: Cell<Option<List>> = const { Cell::new(None) };
}

impl StatusList {
    pub(crate) const EMPTY: Self = Self(None);

    /// The maximum capacity of a list that a thread keeps.
    const MAX_CAPACITY: usize = 16;

    /// Returns a list to which limits can be added.
    fn new() -> Self {
        // A thread that ends has no spare list.
        Self(Some(SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&[LimitStatus]> {
        self.0.as_ref().map(|list| &***list)
    }

    pub(super) fn iter_mut(&mut self) -> slice::IterMut<'_, LimitStatus> {
        self.0.as_mut().map_or(&mut [][..], |list| &mut ***list).iter_mut()
    }

    pub(super) fn retain_mut(&mut self, f: impl FnMut(&mut LimitStatus) -> bool) {
        if let Some(list) = &mut self.0 {
            list.retain_mut(f);
        }
    }

    /// Returns the list with each limit replaced, if there is a list.
    pub(super) fn map(&self, f: impl FnMut(&LimitStatus) -> LimitStatus) -> Self {
        self.get().map_or(Self::EMPTY, |list| list.iter().map(f).collect())
    }

    /// Adds a limit at the end.
    pub(crate) fn push(&mut self, status: LimitStatus) {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.0.get_or_insert_default().push(status);
    }

    pub(crate) fn reverse(&mut self) {
        self.0.as_mut().map_or(&mut [][..], |list| &mut ***list).reverse();
    }

    fn keep(mut list: List) {
        list.clear();
        if list.capacity() <= Self::MAX_CAPACITY {
            let _ = SPARE.try_with(|spare| spare.set(Some(list)));
        }
    }
}

impl FromIterator<LimitStatus> for StatusList {
    fn from_iter<I: IntoIterator<Item = LimitStatus>>(statuses: I) -> Self {
        let mut list = Self::new();
        list.0.get_or_insert_default().extend(statuses);
        list
    }
}

impl Clone for StatusList {
    fn clone(&self) -> Self {
        self.map(LimitStatus::clone)
    }
}

/// The drop of a list is out of line, and takes the list by value, as in [`ColdDrop`](super::cold_drop::ColdDrop).
impl Drop for StatusList {
    #[inline]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn drop_cold(list: List) {
            StatusList::keep(list);
        }
        if let Some(list) = self.0.take() {
            drop_cold(list);
        }
    }
}
