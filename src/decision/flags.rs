/// Properties that few decisions have, in one byte that the fast path writes once: row "hot key" of benches/figures.md.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DecisionFlags(u8);

impl DecisionFlags {
    pub(super) const NONE: Self = Self(0);

    /// The wait of a denied decision is an estimate.
    pub(super) const ESTIMATE: Self = Self(1);
    /// The request would be allowed if leases held nothing.
    pub(super) const DENIED_BY_LEASES: Self = Self(1 << 1);
    /// The guard of the request holds fixed costs.
    pub(super) const HOLDS_FIXED: Self = Self(1 << 2);
    /// The guard of the request holds what limits on requests in flight count.
    pub(super) const HOLDS_UNTIL_END: Self = Self(1 << 3);
    /// The key has the maximum number of reservation ids.
    pub(super) const TOO_MANY_IDS: Self = Self(1 << 4);
    /// The hold repeats the id of a hold that is open.
    pub(super) const REPEAT: Self = Self(1 << 5);

    #[inline]
    pub(super) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub(super) const fn set(&mut self, flag: Self, value: bool) {
        self.0 = if value { self.0 | flag.0 } else { self.0 & !flag.0 };
    }
}
