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
