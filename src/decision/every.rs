use std::time::Duration;

use super::standing::Standing;

/// Every limit's standing, where they were asked for.
///
/// Most decisions list none. To drop one of those takes no call, so a compiler that sees it made and dropped can leave out what
/// nobody asks of it.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Every(#[allow(clippy::box_collection, reason = "one word")] Option<Box<Vec<Standing>>>);

impl Every {
    pub(super) const NONE: Self = Self(None);

    pub(super) fn of(standings: Vec<Standing>) -> Self {
        Self(Some(Box::new(standings)))
    }

    /// The same a while later, if nobody asks meanwhile.
    pub(super) fn later(&self, elapsed: Duration) -> Self {
        match self.get() {
            Some(standings) => Self::of(standings.iter().map(|standing| standing.later(elapsed)).collect()),
            None => Self::NONE,
        }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<&[Standing]> {
        self.0.as_deref().map(Vec::as_slice)
    }
}

impl Drop for Every {
    #[inline(always)]
    fn drop(&mut self) {
        #[cold]
        #[inline(never)]
        fn drop_there<T>(_: T) {}
        if let Some(standings) = self.0.take() {
            drop_there(standings);
        }
    }
}
