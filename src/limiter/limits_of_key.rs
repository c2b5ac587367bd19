use std::hash::Hash;

use super::capacity::limit_id;
use crate::decision::{AcquireOptions, ShareRole};
use crate::limit::LimitCost;

/// Receives the limits that apply to a key, and the units of all limits: see
/// [`Limiter::limits_of`](super::Limiter::limits_of).
pub struct LimitsOfKey<'a>(Visit<'a>);

/// What the caller asks for.
enum Visit<'a> {
    Limits(&'a mut dyn FnMut(LimitOfKey<'_>)),
    Units(&'a mut dyn FnMut(&'static str)),
    /// All limits of stores, whatever the key: the name, and whether the limit denies requests.
    All(&'a mut dyn FnMut(&str, bool)),
}

/// One limit that applies to a key.
pub(crate) struct LimitOfKey<'a> {
    pub(crate) name: &'a str,
    /// The number of the limit and the sub-key in this process: what a release of units names.
    pub(crate) id: u64,
    /// Whether a store names the limit, whose guards wake waiting requests.
    pub(crate) is_of_store: bool,
    pub(crate) cost: LimitCost,
    /// The units that the limit keeps free from the request.
    pub(crate) kept_free: u64,
    pub(crate) share: ShareRole,
    /// How many requests may wait, if the limit bounds that.
    pub(crate) max_waiting: Option<u64>,
}

impl LimitOfKey<'_> {
    /// Returns what a request with these options costs on the limit.
    pub(crate) fn cost_of(&self, options: AcquireOptions) -> u64 {
        self.cost.options(options).cost
    }
}

/// Receives the name of a limit, whether it denies requests (shadows and guaranteed shares do not), and the unit of its cost.
type VisitLimit<'a> = dyn FnMut(&str, bool, Option<&'static str>) + 'a;

impl<'a> LimitsOfKey<'a> {
    pub(crate) fn new(visit: &'a mut dyn FnMut(LimitOfKey<'_>)) -> Self {
        Self(Visit::Limits(visit))
    }

    pub(crate) fn units(visit: &'a mut dyn FnMut(&'static str)) -> Self {
        Self(Visit::Units(visit))
    }

    pub(crate) fn all(visit: &'a mut dyn FnMut(&str, bool)) -> Self {
        Self(Visit::All(visit))
    }

    /// Adds a limit: its name, as in [`LimitStatus::name`](crate::LimitStatus::name), and the part of the key by which
    /// it counts.
    pub fn add(&mut self, name: &str, sub_key: &(impl Hash + ?Sized)) {
        if let Visit::All(visit) = &mut self.0 {
            visit(name, true);
        }
        self.add_limit(LimitOfKey {
            name,
            id: limit_id((name, sub_key)),
            is_of_store: false,
            cost: LimitCost::OfRequest,
            kept_free: 0,
            share: ShareRole::None,
            max_waiting: None,
        });
    }

    /// Adds the unit of a limit, also of a limit that does not apply to the key.
    pub fn add_unit(&mut self, unit: &'static str) {
        if let Visit::Units(visit) = &mut self.0 {
            visit(unit);
        }
    }

    pub(crate) fn add_limit(&mut self, limit: LimitOfKey<'_>) {
        if let Visit::Limits(visit) = &mut self.0 {
            visit(limit);
        }
    }

    /// Visits all limits, if this call needs them and not the limits of the key. Returns whether it does.
    pub(crate) fn add_all(&mut self, visit_all: impl FnOnce(&mut VisitLimit<'_>)) -> bool {
        match &mut self.0 {
            Visit::Limits(_) => return false,
            Visit::Units(visit) => visit_all(&mut |_, _, unit| unit.into_iter().for_each(&mut *visit)),
            Visit::All(visit) => visit_all(&mut |name, denies, _| visit(name, denies)),
        }
        true
    }
}

impl_debug!(LimitsOfKey<'_> {});

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::ready;
    use std::sync::Arc;

    use super::*;
    use crate::BoxLimiter;
    use crate::decision::AcquireOptions;
    use crate::error::Error;
    use crate::limiter::{Chained, DeniedCache, FailOpen, Fallback, Limiter, LimiterFuture, Outcome};
    use crate::{FixedWindow, Limit, Memory, Quota};

    /// (user, team).
    type Key = (u64, u64);

    /// A custom limiter with one limit, by team, or with none.
    #[derive(Clone)]
    struct Custom(Option<&'static str>);

    impl Limiter<Key> for Custom {
        fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::pending(ready(Err(Error::unavailable("the store is unavailable"))))
        }

        fn limits_of(&self, &(_, team): &Key, limits: &mut LimitsOfKey<'_>) {
            if let Some(name) = self.0 {
                limits.add(name, &team);
            }
        }
    }

    fn limits_of(limiter: &impl Limiter<Key>, key: Key) -> Vec<(String, u64)> {
        let mut named = Vec::new();
        limiter.limits_of(&key, &mut LimitsOfKey::new(&mut |limit| named.push((limit.name.to_owned(), limit.id))));
        named
    }

    #[test]
    fn requests_of_one_limit_and_sub_key_have_one_id() {
        let quota = FixedWindow::new(Quota::per_second(1));
        let team = || Limit::new("team", quota).keyed_by(|&(_, team): &Key| team);
        let memory: Memory<Key, _> = Memory::new(team());
        let [of_alice, of_bob, of_carol] = [(1, 1), (2, 1), (3, 2)].map(|key| limits_of(&memory, key));
        assert_eq!(of_alice.len(), 1);
        assert_eq!(of_alice, of_bob);
        assert_ne!(of_alice, of_carol);
        assert_eq!(limits_of(&memory.clone(), (1, 1)), of_alice, "a clone has the same limits");
        let other: Memory<Key, _> = Memory::new(team());
        assert_ne!(limits_of(&other, (1, 1)), of_alice, "another limiter has other limits");
        let [of_alice, of_bob, of_carol] = [(1, 1), (2, 1), (3, 2)].map(|key| limits_of(&Custom(Some("team")), key));
        assert_eq!(of_alice, of_bob);
        assert_ne!(of_alice, of_carol);
        assert_ne!(limits_of(&Custom(Some("all")), (2, 1)), of_alice);
        // A shadow limit denies no request.
        assert_eq!(limits_of(&Memory::new(team().shadow()), (1, 1)), []);
    }

    #[test]
    fn wrappers_name_the_limits_of_their_limiters() {
        fn check(limiter: &impl Limiter<Key>, expected: &[&[(String, u64)]]) {
            assert_eq!(limits_of(limiter, (1, 2)), expected.concat());
        }

        let (first, second, none) = (Custom(Some("first")), Custom(Some("second")), Custom(None));
        let [of_first, of_second] = [&first, &second].map(|limiter| limits_of(limiter, (1, 2)));
        assert_eq!((of_first.len(), of_second.len(), limits_of(&none, (1, 2)).len()), (1, 1, 0));
        check(&Arc::new(first.clone()), &[&of_first]);
        check(&BoxLimiter::new(first.clone()), &[&of_first]);
        check(&DeniedCache::new(first.clone()), &[&of_first]);
        check(&FailOpen::new(first.clone()), &[&of_first]);
        check(&Fallback::new(first.clone(), second.clone()), &[&of_first, &of_second]);
        check(&Chained::new(first.clone(), second.clone()), &[&of_first, &of_second]);
        check(&Chained::new(none.clone(), second.clone()), &[&of_second]);
        check(&Fallback::new(first, none), &[&of_first]);
    }
}
