/// What happens to a new key when the table is full: at [`max_keys`](crate::MemoryBuilder::max_keys).
///
/// Below that number of live keys, a new key always gets a slot: the probability that it does not is under 10^-9,
/// whatever the number. (After the table was full, the search for a slot is shorter for at most ten milliseconds.) Keys that
/// have a slot are not affected.
///
/// | | admits beyond a limit | a new key, while the table is full |
/// |---|---|---|
/// | [`Evict`](Self::Evict) | the usage of an evicted key, once for each eviction | starts idle |
/// | [`CarryOver`](Self::CarryOver) | never | may be denied for the usage of evicted keys |
/// | [`Deny`](Self::Deny) | never | is denied |
///
/// # Held costs
///
/// A key with a [held](crate::limiter::Held) cost or a request [in flight](crate::InFlight) keeps its slot under each
/// policy, because its settlement must find it. If all six slots in a new key's place belong to such keys, the new key is
/// denied, as under [`Deny`](Self::Deny), and the wait is an [estimate](crate::Decision::is_estimate):
///
/// - If all other keys are idle, that does not happen below `max_keys` keys with held costs.
/// - If all other slots are in use, it happens to one new key in 10 000 if a tenth of the slots has held costs, to one in
///   1000 if a fifth has, and to one in 19 if half has.
///
/// So a client that can open requests under many keys can keep new clients out. Bound the requests in flight in total,
/// with a second limit that counts all keys together, well below `max_keys`.
///
/// A shadow limit never denies. Without a slot for a key, a shadow does not count the request: see
/// [`LimitStatus::is_uncounted`](crate::LimitStatus::is_uncounted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Evicts, of the six keys in the new key's place, the key with the least usage: the smallest part of its limit,
    /// and of equals the key that is idle first. The default.
    ///
    /// A key at its limit stays, unless all six are at their limits. An evicted key is idle when it comes back, so its
    /// burst is available again: its usage is admitted beyond the limit, once for each eviction.
    ///
    /// A flood of new keys that each use a part of their limit therefore evicts no key that is at its limit. A flood of
    /// keys that each use up their whole limit does: the other five keys must have used as much. Clients do not know
    /// which keys share a place. So to evict a particular key, about as many keys as the capacity must use up their
    /// limits while that key is denied: [`max_keys`](crate::MemoryBuilder::max_keys) times the limit, in admitted
    /// requests. If clients can create keys (sessions, accounts, IPv6 addresses) and the limit must hold in any case,
    /// choose [`CarryOver`](Self::CarryOver) or [`Deny`](Self::Deny).
    ///
    /// If the algorithm is chosen by the key, the new key's algorithm determines the usage of all six.
    #[default]
    Evict,
    /// Evicts like [`Evict`](Self::Evict), and keeps the usage of the evicted keys: every new key in their place, also
    /// an evicted key that comes back, starts with the largest usage of the keys that were evicted there.
    ///
    /// So no key is ever admitted beyond its limit, however many keys there are. A flood of new keys is limited,
    /// together, to what the keys of the table can use: new keys start with usage and are soon denied, other clients'
    /// new keys among them, until that usage has drained. A key that is [reset](crate::Limiter::reset) starts like a new
    /// key.
    ///
    /// This is exact if one algorithm applies to all keys. If the algorithm is chosen by the key, the new key's
    /// algorithm interprets the usage. The table stores one more state for every three keys.
    CarryOver,
    /// Denies the new key, with a `retry_after` until one of the keys in its place is idle: an
    /// [estimate](crate::Decision::is_estimate), because a slot can be free before. The decision is
    /// [without a limit](crate::DecisionSource::NoLimit), as no limit of the key has denied it. In HTTP it is a 503.
    ///
    /// Setting the usage of a new key, and charging a new key after its request, fails with an error. A shadow limit
    /// evicts instead.
    Deny,
}
