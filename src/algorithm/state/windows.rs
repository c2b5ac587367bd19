use std::num::NonZeroU64;

use super::State;

/// The windows of a [`FixedWindow`](super::super::FixedWindow), one for each period by which a key is charged.
///
/// Nearly every key has one window, which takes four words. Several windows are on the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(unnameable_types, reason = "stores know it by its trait")]
pub enum Windows {
    One(OneWindow),
    Several(Box<WindowWords>),
}

/// The only window of a key: the first words of [`WindowWords`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unnameable_types, reason = "stores know it by its trait")]
pub struct OneWindow {
    pub(crate) end: u64,
    pub(crate) used: u64,
    pub(crate) written_at: u64,
    /// Twice the first hit, and 1 if the end is not set by it. Never zero, so that `Windows` takes no word more.
    pub(crate) start: NonZeroU64,
}

/// The maximum number of windows in a state.
pub(crate) const MAX_WINDOWS: usize = 4;

/// The words of a state: the end of a window, its usage, the time of the last charge, the first hit of the window, and the
/// kinds; then end, usage and first hit of each further window. The window that ends last is first. The kinds are the number
/// of further windows, times 16, and a bit for each window whose end is not set by its first hit.
pub(crate) type WindowWords = [u64; 3 * MAX_WINDOWS + 2];

pub(crate) const WRITTEN_AT: usize = 2;
pub(crate) const KINDS: usize = 4;

/// Returns the number of windows behind the first one.
#[inline]
pub(crate) fn further(state: &[u64]) -> usize {
    state.get(KINDS).map_or(0, |kinds| (kinds >> 4).min(MAX_WINDOWS as u64 - 1) as usize)
}

impl OneWindow {
    #[inline]
    pub(crate) const fn first_hit(&self) -> u64 {
        (self.start.get() - 2) >> 1
    }

    /// Returns whether the end is not set by the first hit.
    #[inline]
    pub(crate) const fn is_by_clock(&self) -> bool {
        self.start.get() & 1 == 1
    }

    #[inline]
    fn from_words([end, used, written_at, first_hit, kinds, ..]: WindowWords) -> Self {
        let start = first_hit.saturating_mul(2).saturating_add(2 + (kinds & 1));
        Self { end, used, written_at, start: NonZeroU64::new(start).unwrap_or(NonZeroU64::MIN) }
    }
}

impl Windows {
    pub(crate) fn words(&self) -> WindowWords {
        match self {
            Self::Several(words) => **words,
            Self::One(window) => {
                let mut words = [0; _];
                words[..=KINDS].copy_from_slice(&[
                    window.end,
                    window.used,
                    window.written_at,
                    window.first_hit(),
                    u64::from(window.is_by_clock()),
                ]);
                words
            }
        }
    }

    pub(crate) fn from_words(words: WindowWords) -> Self {
        let one = OneWindow::from_words(words);
        // A first hit beyond the times of a clock does not fit, and no kind of another window.
        let fits = one.first_hit() == words[3] && u64::from(one.is_by_clock()) == words[KINDS];
        if fits { Self::One(one) } else { Self::Several(Box::new(words)) }
    }
}

impl State for Windows {
    type Next = Self;

    #[inline]
    fn apply(&mut self, next: Self) {
        *self = next;
    }

    #[inline]
    fn empty() -> Self {
        Self::One(OneWindow::from_words([0; _]))
    }

    #[inline]
    fn next_state(next: &Self) -> Option<&Self> {
        Some(next)
    }

    #[inline]
    fn idle_at(&self) -> u64 {
        match self {
            Self::One(window) => window.end,
            Self::Several(words) => words[0],
        }
    }

    // Only the words of windows that the state has are stored.
    fn from_numbers(numbers: &[u64]) -> Self {
        let mut words = [0; _];
        for (word, number) in words.iter_mut().zip(numbers).take(KINDS + 1 + 3 * further(numbers)) {
            *word = *number;
        }
        Self::from_words(words)
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        let words = self.words();
        numbers.extend(&words[..KINDS + 1 + 3 * further(&words)]);
    }

    fn from_stored(numbers: &[u64]) -> Option<Self> {
        (numbers.len() == KINDS + 1 + 3 * further(numbers)).then(|| Self::from_numbers(numbers))
    }

    fn heap_bytes(&self) -> usize {
        if let Self::Several(words) = self { size_of_val(&**words) } else { 0 }
    }
}
