/// What becomes of a new key when there is no room for it: at the cap on keys, which is
/// [`max_keys`](crate::MemoryBuilder::max_keys).
///
/// Below the cap none of this happens: with as many keys remembered as that, the chance that one of them has no room is under
/// 10^-9, whatever the cap. (Only in the millisecond after a table was full to its last slot is less thoroughly looked for
/// room.) Keys that have room are not concerned: they are decided as ever.
///
/// | | over-admits | a new key, while the table is full |
/// |---|---|---|
/// | [`Forget`](Self::Evict) | what was forgotten, once each time | is as good as new |
/// | [`Inherit`](Self::CarryOver) | never | may be refused for what others owe |
/// | [`Refuse`](Self::Deny) | never | is refused |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// The key among the few in its place that owes least makes room: the one with the smallest part of its limit used up,
    /// and of equals the one that is as good as new first. The default.
    ///
    /// Of six keys the one that owes least goes, so whoever is being refused stays, unless all six are. A key that is
    /// forgotten is as good as new when it comes back, and may have its burst again: what it owed until then is let through
    /// beyond its limit, once for each time that it is forgotten.
    ///
    /// So a flood of new keys that use a part of their limit each frees no key that has used up its own. A flood of keys that
    /// each use up their whole limit does: the other five must all have used as much, and nobody knows which keys share these
    /// places, so about as many keys as have room must use up their limit while the key is refused. That is
    /// [`max_keys`](crate::MemoryBuilder::max_keys) times the limit, in requests that are let through. Where clients can make
    /// keys up (sessions, accounts, IPv6 addresses) and the limit must hold all the same, choose [`Inherit`](Self::CarryOver) or
    /// [`Refuse`](Self::Deny).
    ///
    /// Where the algorithm is chosen by the key, what the six owe is measured by the new key's algorithm.
    #[default]
    Evict,
    /// As with [`Forget`](Self::Evict) the key that owes least makes room, but what it owes stays owed in its place: every
    /// new key there, itself included when it comes back, starts with the most that anybody owed who was forgotten there.
    ///
    /// So nobody is ever let through beyond a limit, however many keys there are. Under a flood of new keys this holds them
    /// together to what the table's keys may have: new keys begin with a debt and are soon refused, and the honest ones among
    /// them too, for as long as it takes what was inherited to drain. A key that is [reset](crate::Memory::reset) begins
    /// like a new one.
    ///
    /// Exact where one algorithm holds for all keys; where it is chosen by the key, the new key's algorithm reads what was
    /// inherited. A state is kept for every three keys more.
    CarryOver,
    /// The new key is refused, with a `retry_after` until one of the keys in its place is as good as new. The decision is
    /// [by policy](crate::DecisionSource::Policy): no limit of the key's own has refused it, and in HTTP it is a 503.
    ///
    /// Setting what a new key has used, and charging one more afterwards, fails with an error. A shadow limit that is full
    /// forgets: it never refuses.
    Deny,
}
