use std::fmt;
use std::hash::{BuildHasher as _, Hash};

use foldhash::quality::RandomState;

use crate::limit::LimitCost;

/// Receives the limits that apply to a key: see [`Limiter::limits_of`](super::Limiter::limits_of).
pub struct LimitsOfKey<'a> {
    hasher: &'a RandomState,
    visit: &'a mut dyn FnMut(LimitOfKey<'_>),
}

/// One limit that applies to a key.
pub(crate) struct LimitOfKey<'a> {
    pub(crate) name: &'a str,
    /// A keyed hash of the limit's name and the sub-key.
    pub(crate) id: u64,
    pub(crate) cost: LimitCost,
    /// How many requests may wait, if the limit bounds that.
    pub(crate) max_waiting: Option<u64>,
}

impl<'a> LimitsOfKey<'a> {
    pub(crate) fn new(hasher: &'a RandomState, visit: &'a mut dyn FnMut(LimitOfKey<'_>)) -> Self {
        Self { hasher, visit }
    }

    /// Adds a limit: its name, as in [`LimitStatus::name`](crate::LimitStatus::name), and the part of the key by which
    /// it counts.
    pub fn add(&mut self, name: &str, sub_key: &(impl Hash + ?Sized)) {
        self.add_limit(name, sub_key, LimitCost::OfRequest, None);
    }

    /// Adds a limit that keeps units free from the requests of some keys: requests wait behind requests of their class only.
    pub(crate) fn add_class(
        &mut self,
        name: &str,
        sub_key: &(impl Hash + ?Sized),
        kept_free: Option<u64>,
        cost: LimitCost,
        max_waiting: Option<u64>,
    ) {
        match kept_free.unwrap_or_default() {
            0 => self.add_limit(name, sub_key, cost, max_waiting),
            kept_free => self.add_limit(name, &(kept_free, sub_key), cost, max_waiting),
        }
    }

    pub(crate) fn add_limit(
        &mut self,
        name: &str,
        sub_key: &(impl Hash + ?Sized),
        cost: LimitCost,
        max_waiting: Option<u64>,
    ) {
        let id = self.hasher.hash_one((name, sub_key));
        (self.visit)(LimitOfKey { name, id, cost, max_waiting });
    }
}

impl fmt::Debug for LimitsOfKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsOfKey").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::{Ready, ready};
    use std::sync::Arc;

    use super::*;
    use crate::decision::AcquireOptions;
    use crate::error::Error;
    use crate::limiter::{Acquisition, BoxLimiter, Chained, DeniedCache, FailOpen, Fallback, Limiter, Outcome};
    use crate::{FixedWindow, Limit, Memory, Quota};

    /// (user, team).
    type Key = (u64, u64);

    /// A custom limiter with one limit, by team, or with none.
    #[derive(Clone)]
    struct Custom(Option<&'static str>);

    impl Limiter<Key> for Custom {
        type Future = Ready<Result<Outcome, Error>>;

        fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
            Acquisition::Pending(ready(Err(Error::unavailable("the store is unavailable"))))
        }

        fn limits_of(&self, &(_, team): &Key, limits: &mut LimitsOfKey<'_>) {
            if let Some(name) = self.0 {
                limits.add(name, &team);
            }
        }
    }

    fn limits_of(limiter: &impl Limiter<Key>, key: Key, hasher: &RandomState) -> Vec<(String, u64)> {
        let mut named = Vec::new();
        limiter
            .limits_of(&key, &mut LimitsOfKey::new(hasher, &mut |limit| named.push((limit.name.to_owned(), limit.id))));
        named
    }

    #[test]
    fn requests_of_one_limit_and_sub_key_have_one_id() {
        let hasher = RandomState::default();
        let quota = FixedWindow::new(Quota::per_second(1));
        let team = || Limit::new("team", quota).keyed_by(|&(_, team): &Key| team);
        let memory: Memory<Key, _> = Memory::new(team());
        let [of_alice, of_bob, of_carol] = [(1, 1), (2, 1), (3, 2)].map(|key| limits_of(&memory, key, &hasher));
        assert_eq!(of_alice.len(), 1);
        assert_eq!(of_alice, of_bob);
        assert_ne!(of_alice, of_carol);
        // A custom limiter's limit of the same name and sub-key is the same limit, another name is another limit.
        assert_eq!(limits_of(&Custom(Some("team")), (2, 1), &hasher), of_alice);
        assert_ne!(limits_of(&Custom(Some("all")), (2, 1), &hasher), of_alice);
        // A shadow limit denies no request.
        assert_eq!(limits_of(&Memory::new(team().shadow()), (1, 1), &hasher), []);
    }

    #[test]
    fn wrappers_name_the_limits_of_their_limiters() {
        fn check(limiter: &impl Limiter<Key>, expected: &[&[(String, u64)]], hasher: &RandomState) {
            assert_eq!(limits_of(limiter, (1, 2), hasher), expected.concat());
        }

        let hasher = RandomState::default();
        let (first, second, none) = (Custom(Some("first")), Custom(Some("second")), Custom(None));
        let [of_first, of_second] = [&first, &second].map(|limiter| limits_of(limiter, (1, 2), &hasher));
        assert_eq!((of_first.len(), of_second.len(), limits_of(&none, (1, 2), &hasher).len()), (1, 1, 0));
        check(&Arc::new(first.clone()), &[&of_first], &hasher);
        check(&BoxLimiter::new(first.clone()), &[&of_first], &hasher);
        check(&DeniedCache::new(first.clone()), &[&of_first], &hasher);
        check(&FailOpen::new(first.clone()), &[&of_first], &hasher);
        check(&Fallback::new(first.clone(), second.clone()), &[&of_first, &of_second], &hasher);
        check(&Chained::new(first.clone(), second.clone()), &[&of_first, &of_second], &hasher);
        check(&Chained::new(none.clone(), second.clone()), &[&of_second], &hasher);
        check(&Fallback::new(first, none), &[&of_first], &hasher);
    }
}
