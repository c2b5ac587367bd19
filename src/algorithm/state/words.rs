use super::State;

impl<const N: usize> State for [u64; N] {
    type Next = Self;

    #[inline]
    fn apply(&mut self, next: Self) {
        *self = next;
    }

    #[inline]
    fn empty() -> Self {
        const { assert!(N > 0, "a state needs at least one word: the time at which the key is idle") }
        [0; N]
    }

    #[inline]
    fn next_state(next: &Self) -> Option<&Self> {
        Some(next)
    }

    #[inline]
    fn idle_at(&self) -> u64 {
        const { assert!(N > 0, "a state needs at least one word: the time at which the key is idle") }
        self[0]
    }

    fn from_numbers(numbers: &[u64]) -> Self {
        std::array::from_fn(|word| numbers.get(word).copied().unwrap_or(0))
    }

    fn to_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.extend(self);
    }

    fn from_stored(numbers: &[u64]) -> Option<Self> {
        numbers.try_into().ok()
    }
}
