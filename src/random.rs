/// Pseudo-random numbers (`SplitMix64`), equal in each run, for tests and test programs: other binaries and packages
/// include this file.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

#[allow(dead_code, reason = "each binary uses a part")]
impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// Returns a number from `first` to `last`.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Returns a share from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        f64::from(u32::try_from(self.number() >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }

    /// Returns true in so many of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns an index of a list with this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(u64::try_from(length).unwrap_or(1))).unwrap_or(0)
    }

    pub(crate) fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }
}

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.number())
    }
}
