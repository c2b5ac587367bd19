use super::held::Held;
#[cfg(doc)]
use crate::decision::AcquireOptions;
use crate::decision::{Decision, HeldParts};
use crate::error::Error;

/// A decision, and the guard of the cost that is held for it.
///
/// A limiter around another one returns the guard of the limiter inside, or maps it ([`Held::map_settle`]). A guard has a
/// part for each kind of cost that the limiter holds. If the decision of the limiter inside holds a part that the returned
/// guard lacks, the layer rejects the request with an error.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the decision says whether the request is allowed, and dropping the guard settles the held cost"]
pub struct Outcome {
    /// The decision.
    pub decision: Decision,
    /// The guard, if the request is allowed and its cost is [held](AcquireOptions::hold), or held by a limit on requests
    /// [in flight](crate::InFlight).
    pub held: Option<Held>,
}

impl Outcome {
    /// Creates the outcome of a custom limiter. A decision without a guard converts [`From`] a [`Decision`].
    #[inline]
    pub fn new(decision: Decision, held: Option<Held>) -> Self {
        Self { decision, held }
    }

    /// Creates the outcome of a store. The decision records the parts of the guard, so that callers can
    /// [check](Self::check_guard) whether they have received them.
    #[inline]
    pub(crate) fn of_store(mut decision: Decision, held: Option<Held>) -> Self {
        decision.set_held_parts(held.as_ref().map_or(HeldParts::NONE, Held::part_kinds));
        Self { decision, held }
    }

    /// Lets the end of the guard wake the requests that wait for some limits, if there are any.
    pub(crate) fn waking(self, limits: impl FnOnce() -> Option<Vec<u64>>) -> Self {
        let Self { decision, held } = self;
        let held = held.map(|held| match limits() {
            None => held,
            Some(limits) => held.waking(limits.into()),
        });
        Self { decision, held }
    }

    /// Returns whether the guard has all parts, and the caller keeps each as long as needed.
    #[inline]
    pub(crate) fn has_whole_guard(&self, keeps_until_end: bool) -> bool {
        let expected = self.decision.held_parts();
        match &self.held {
            None => expected == HeldParts::NONE,
            Some(held) => {
                let parts = held.part_kinds();
                parts.include(expected) && (keeps_until_end || !parts.until_end)
            }
        }
    }

    /// Returns an error, and releases what is held, unless the guard [is whole](Self::has_whole_guard).
    pub(crate) fn check_guard(self, keeps_until_end: bool) -> Result<Self, Error> {
        if self.has_whole_guard(keeps_until_end) {
            return Ok(self);
        }
        let expected = self.decision.held_parts();
        let lacks_parts = !self.held.as_ref().map_or(HeldParts::NONE, Held::part_kinds).include(expected);
        if let Some(held) = self.held {
            held.release().detach();
        }
        Err(if lacks_parts { Error::guard_lacks_parts() } else { Error::guard_not_kept() })
    }
}

impl From<Decision> for Outcome {
    /// Creates an outcome that holds nothing.
    fn from(decision: Decision) -> Self {
        Self { decision, held: None }
    }
}
