//! Finds limiters of this process that share keys in Redis, but count differently.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::script::LimitInfo;

/// The location of a limiter's keys, and its limits.
pub(crate) struct Registration {
    endpoints: Vec<String>,
    prefix: String,
    name: String,
    limits: Vec<LimitInfo>,
}

/// The limiters of this process. A registration ends with its limiter.
static REGISTRY: Mutex<Vec<Weak<Registration>>> = Mutex::new(Vec::new());

impl Registration {
    /// Registers a limiter, and returns a warning for each conflict with another one.
    pub(crate) fn register(
        endpoints: Vec<String>,
        prefix: &str,
        name: &str,
        limits: &[LimitInfo],
    ) -> (Arc<Self>, Vec<String>) {
        let limits = limits.to_vec();
        let new = Arc::new(Self { endpoints, prefix: prefix.to_owned(), name: name.to_owned(), limits });
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.retain(|other| other.strong_count() > 0);
        let others: Vec<_> = registry.iter().filter_map(Weak::upgrade).collect();
        registry.push(Arc::downgrade(&new));
        drop(registry);
        let shares_keys = |other: &&Arc<Self>| {
            (&new.prefix, &new.name) == (&other.prefix, &other.name)
                && new.endpoints.iter().any(|endpoint| other.endpoints.contains(endpoint))
        };
        let conflicts = others.iter().filter(shares_keys).flat_map(|other| new.conflicts_with(other)).collect();
        (new, conflicts)
    }

    fn conflicts_with(&self, other: &Self) -> Vec<String> {
        let pairs = self.limits.iter().flat_map(|new| other.limits.iter().map(move |old| (new, old)));
        let pairs = pairs.filter(|(new, old)| new.facts.name.as_str() == old.facts.name.as_str());
        pairs.filter_map(|(new, old)| conflict(new, old, &self.name)).collect()
    }
}

/// Returns the warning about two limits with one name that count differently. `name` is the name of their limiters.
fn conflict(new: &LimitInfo, old: &LimitInfo, name: &str) -> Option<String> {
    let (limit, scripts) = (new.facts.name.as_str(), [old, new].map(|limit| limit.script.name()));
    let conflict = if scripts[0] != scripts[1] {
        format!(
            "with different algorithms ({} and {}), so they do not share usage and together allow the sum of both \
             limits",
            scripts[0], scripts[1]
        )
    } else if params(old) != params(new) {
        "with different quotas, so they share usage, and each charges what the other allows".to_owned()
    } else {
        return None;
    };
    Some(format!(
        "conflicting limiters: two limiters named {name:?} on the same Redis have a limit named {limit:?} \
         {conflict}; give them different names, or clone one limiter"
    ))
}

/// Returns the parameters of a limit's algorithm. `None` if the key chooses the algorithm.
fn params(limit: &LimitInfo) -> Option<Vec<u64>> {
    let mut params = Vec::new();
    limit.algorithm(&None)?.params(1, &mut params);
    Some(params)
}
