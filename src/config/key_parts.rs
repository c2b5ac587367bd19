use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::names::{Names, When};
use super::{BuiltAlgorithm, Policy};
use crate::algorithm::Algorithm;
use crate::decision::WarnAt;
use crate::encode::EncodeKey;
use crate::error::Error;
use crate::limit::{KeepFree, KeyedBy, Limit, LimitFacts, OnlyIf};
use crate::store::DynLimit;
#[cfg(feature = "redis")]
use crate::store::RedisLimit;

/// The sub-keys by which policies count, and their conditions, by their names in configuration: see [the module](super).
#[must_use]
pub struct KeyParts<Key: ?Sized> {
    sub_keys: Vec<(String, Box<dyn BuildLimit<Key>>)>,
    conditions: Vec<(String, Condition<Key>)>,
}

/// Returns whether a limit applies to a key.
pub(crate) type Condition<Key> = Arc<dyn Fn(&Key) -> bool + Send + Sync>;

/// Returns the sub-key of a key. Not of the type of the caller's closure: the compiler would generate each algorithm's table
/// for each closure.
pub(crate) type SubKeyFn<Key, SubKey> = Arc<dyn Fn(&Key) -> SubKey + Send + Sync>;

/// The conditions of one policy.
pub(crate) struct Conditions<Key: ?Sized> {
    /// Whether the limit applies.
    pub(crate) when: Option<Condition<Key>>,
    /// The units that are kept free from requests that satisfy a condition.
    pub(crate) kept_free: Vec<(Condition<Key>, u64)>,
}

type ConfiguredSubKey<P, Units, When> = OnlyIf<KeepFree<P, Units>, When>;

impl<Key: ?Sized + 'static> KeyParts<Key> {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self { sub_keys: Vec::new(), conditions: Vec::new() }
    }

    /// Adds a sub-key. It replaces an earlier sub-key of the same name.
    pub fn add<SubKey, F>(mut self, name: impl Into<String>, sub_key: F) -> Self
    where
        SubKey: Hash + EncodeKey + 'static,
        F: Fn(&Key) -> SubKey + Send + Sync + 'static,
    {
        let (name, sub_key): (String, SubKeyFn<Key, SubKey>) = (name.into(), Arc::new(sub_key));
        self.sub_keys.retain(|(other, _)| *other != name);
        self.sub_keys.push((name, Box::new(sub_key)));
        self
    }

    /// Adds a condition: a policy with `when = NAME` applies only to keys for which `condition` returns `true`, as with
    /// [`Limit::only_if`](crate::Limit::only_if). A policy with `keep_free = { NAME = UNITS }` keeps units free from these
    /// keys, as with [`Limit::keep_free_by`](crate::Limit::keep_free_by). It replaces an earlier condition of the same name.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("conditions.md"))]
    pub fn add_condition(
        mut self,
        name: impl Into<String>,
        condition: impl Fn(&Key) -> bool + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.conditions.retain(|(other, _)| *other != name);
        self.conditions.push((name, Arc::new(condition)));
        self
    }

    /// Builds the limits of the policies, for [`Memory`](crate::Memory).
    ///
    /// # Errors
    ///
    /// Returns an error if a policy counts by an unknown sub-key or has an unknown condition, or if two policies have one
    /// name. The error names the policy and the field.
    pub fn limits(&self, policies: &[Policy]) -> Result<Vec<DynLimit<Key>>, Error> {
        self.build(policies, |sub_key, policy, conditions| sub_key.in_memory(policy, conditions))
    }

    /// Builds the limits of the policies, for [`Redis`](crate::Redis).
    ///
    /// # Errors
    ///
    /// As [`limits`](Self::limits).
    #[cfg(feature = "redis")]
    pub fn redis_limits(&self, policies: &[Policy]) -> Result<Vec<RedisLimit<Key>>, Error> {
        self.build(policies, |sub_key, policy, conditions| sub_key.in_redis(policy, conditions))
    }

    fn build<L>(
        &self,
        policies: &[Policy],
        build: impl Fn(&dyn BuildLimit<Key>, &Policy, Conditions<Key>) -> L,
    ) -> Result<Vec<L>, Error> {
        let build = |(index, policy): (usize, &Policy)| {
            check_name(index, policy, policies.iter())?;
            policy.check_block(policies).map_err(|problem| field_error(index, policy, "escalate", &problem))?;
            let sub_key = match policy.fields.by.as_ref().map(Names::as_slice) {
                Some([by]) => self.sub_keys.iter().find(|(name, _)| name == by),
                _ => None,
            };
            let (_, sub_key) = sub_key.ok_or_else(|| {
                let known = list_of(self.sub_keys.iter().map(|(name, _)| name));
                let problem = format!("unknown sub-key {:?}; use one of {known}", policy.by());
                field_error(index, policy, "by", &problem)
            })?;
            Ok(build(&**sub_key, policy, self.conditions_of(index, policy)?))
        };
        policies.iter().enumerate().map(build).collect()
    }

    fn conditions_of(&self, index: usize, policy: &Policy) -> Result<Conditions<Key>, Error> {
        let when = match &policy.fields.when {
            None => None,
            Some(When::Condition(name)) => Some(self.condition(index, policy, "when", name)?),
            Some(When::Parts(_)) => {
                let problem = "parts of a request are for `routes::RouteLimits`; name a condition";
                return Err(field_error(index, policy, "when", problem));
            }
        };
        let kept_free = policy
            .keep_free()
            .map(|(name, units)| Ok((self.condition(index, policy, "keep_free", name)?, units)))
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(Conditions { when, kept_free })
    }

    fn condition(&self, index: usize, policy: &Policy, field: &str, when: &str) -> Result<Condition<Key>, Error> {
        let condition = self.conditions.iter().find(|(name, _)| name == when).map(|(_, condition)| condition);
        condition.cloned().ok_or_else(|| {
            let known = list_of(self.conditions.iter().map(|(name, _)| name));
            let problem = if known.is_empty() {
                format!("unknown condition {when:?}; add it with `KeyParts::add_condition`")
            } else {
                format!("unknown condition {when:?}; use one of {known}")
            };
            field_error(index, policy, field, &problem)
        })
    }
}

pub(crate) fn field_error(index: usize, policy: &Policy, field: &str, problem: &str) -> Error {
    Error::config(format!("limits[{index}] ({:?}), {field}: {problem}", policy.name()))
}

/// Returns an error if an earlier limit has the name of this one.
pub(crate) fn check_name<'a>(
    index: usize,
    policy: &Policy,
    mut all: impl Iterator<Item = &'a Policy>,
) -> Result<(), Error> {
    match all.position(|other| other.name() == policy.name()).filter(|first| *first < index) {
        Some(first) => {
            let problem = format!("limits[{first}] has it too; give each limit its own name");
            Err(field_error(index, policy, "name", &problem))
        }
        None => Ok(()),
    }
}

/// Returns names as an error lists them.
pub(crate) fn list_of<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Evaluates an expression with the algorithm of a policy, whose type differs.
macro_rules! with_algorithm {
    ($policy:expr, $algorithm:ident => $result:expr) => {
        match $policy.built() {
            BuiltAlgorithm::Gcra($algorithm) => $result,
            BuiltAlgorithm::LeakyQueue($algorithm) => $result,
            BuiltAlgorithm::FixedWindow($algorithm) => $result,
            BuiltAlgorithm::SlidingWindow($algorithm) => $result,
            BuiltAlgorithm::SlidingLog($algorithm) => $result,
            BuiltAlgorithm::InFlight($algorithm) => $result,
        }
    };
}

/// A sub-key, which builds the limits of the policies that count by it.
pub(crate) trait BuildLimit<Key: ?Sized>: Send + Sync {
    /// Builds the limit of a policy for memory.
    fn in_memory(&self, policy: &Policy, conditions: Conditions<Key>) -> DynLimit<Key>;

    /// Builds the limit of a policy for Redis.
    #[cfg(feature = "redis")]
    fn in_redis(&self, policy: &Policy, conditions: Conditions<Key>) -> RedisLimit<Key>;
}

impl<Key, SubKey> BuildLimit<Key> for SubKeyFn<Key, SubKey>
where
    Key: ?Sized + 'static,
    SubKey: Hash + EncodeKey + 'static,
{
    fn in_memory(&self, policy: &Policy, conditions: Conditions<Key>) -> DynLimit<Key> {
        with_algorithm!(policy, algorithm => DynLimit::new(limit_of(policy, algorithm, self.clone(), conditions)))
    }

    #[cfg(feature = "redis")]
    fn in_redis(&self, policy: &Policy, conditions: Conditions<Key>) -> RedisLimit<Key> {
        with_algorithm!(policy, algorithm => RedisLimit::new(limit_of(policy, algorithm, self.clone(), conditions)))
    }
}

/// Returns what the checks of a limiter's limits need of a policy.
pub(crate) fn limit_facts(policy: &Policy) -> LimitFacts {
    let (sub_key, conditions) = (Arc::new(|(): &()| ()), Conditions { when: None, kept_free: Vec::new() });
    with_algorithm!(policy, algorithm => limit_of(policy, algorithm, sub_key, conditions).facts::<()>())
}

fn limit_of<Key, A, SubKey>(
    policy: &Policy,
    algorithm: A,
    sub_key: SubKeyFn<Key, SubKey>,
    conditions: Conditions<Key>,
) -> Limit<
    A,
    ConfiguredSubKey<
        KeyedBy<impl Fn(&Key) -> SubKey + Send + Sync + 'static, (SubKey,)>,
        impl Fn(&Key) -> u64 + Send + Sync + 'static,
        impl Fn(&Key) -> bool + Send + Sync + 'static,
    >,
>
where
    Key: ?Sized + 'static,
    A: Algorithm,
    SubKey: 'static,
{
    let limit = Limit::new(policy.name().to_owned(), algorithm).keyed_by(move |key: &Key| sub_key(key));
    let limit = limit.with_sub_key_name(&policy.by());
    let kept_free = Some(conditions.kept_free).filter(|kept_free| !kept_free.is_empty());
    let limit = limit.keep_free_by_some(kept_free.map(|kept_free| {
        move |key: &Key| {
            let units = kept_free.iter().filter(|(condition, _)| condition(key)).map(|(_, units)| *units);
            units.max().unwrap_or_default()
        }
    }));
    let limit = limit.only_if_some(conditions.when.map(|condition| move |key: &Key| condition(key)));
    let limit = if policy.is_shadow() { limit.shadow() } else { limit };
    let limit = match policy.guarantee() {
        Some(sub_keys) => limit.guarantee(sub_keys),
        None => limit,
    };
    let limit = limit.warn_at_mark(policy.warn_at().map(WarnAt::new));
    match (policy.fixed_cost(), policy.unit()) {
        (Some(cost), _) => limit.fixed_cost(cost),
        (None, Some(unit)) => limit.cost_of(unit.to_owned()),
        (None, None) => limit,
    }
}

impl_default!([Key: ?Sized + 'static] KeyParts<Key>);

impl<Key: ?Sized> fmt::Debug for KeyParts<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.sub_keys.iter().map(|(name, _)| name)).finish()
    }
}
