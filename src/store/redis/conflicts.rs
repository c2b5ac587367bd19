//! Finds limiters of this process that share keys in Redis, but count differently.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::script::LimitInfo;

/// The location of a limiter's keys, and how its limits count.
pub(crate) struct Registration {
    endpoints: Vec<String>,
    prefix: String,
    name: String,
    limits: Vec<LimitFingerprint>,
}

/// How a limit counts.
struct LimitFingerprint {
    limit: String,
    script: &'static str,
    /// The algorithm's parameters. `None` if the key chooses the algorithm.
    params: Option<Vec<u64>>,
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
        let limits = limits.iter().map(LimitFingerprint::new).collect();
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
        let pairs = pairs.filter(|(new, old)| new.limit == old.limit);
        pairs.filter_map(|(new, old)| new.conflict_with(old, &self.name)).collect()
    }
}

impl LimitFingerprint {
    fn new(limit: &LimitInfo) -> Self {
        let params = limit.algorithm(None).map(|algorithm| {
            let mut params = Vec::new();
            algorithm.params(1, &mut params);
            params
        });
        Self { limit: limit.facts.name.as_str().to_owned(), script: limit.script.name(), params }
    }

    fn conflict_with(&self, other: &Self, name: &str) -> Option<String> {
        let limit = &self.limit;
        let conflict = if self.script != other.script {
            format!(
                "with different algorithms ({} and {}), so they do not share usage and together allow the sum of both \
                 limits",
                other.script, self.script
            )
        } else if self.params != other.params {
            "with different quotas, so they share usage, and each charges what the other allows".to_owned()
        } else {
            return None;
        };
        Some(format!(
            "conflicting limiters: two limiters named {name:?} on the same Redis have a limit named {limit:?} \
             {conflict}; give them different names, or clone one limiter"
        ))
    }
}
