use std::fmt;
use std::hash::Hash;

use super::{BuiltAlgorithm, Policy};
use crate::algorithm::Algorithm;
use crate::encode::EncodeKey;
use crate::error::Error;
use crate::limit::{KeyedBy, Limit};
use crate::store::DynLimit;
#[cfg(feature = "redis")]
use crate::store::RedisLimit;

/// The sub-keys by which policies count, by their names in configuration: see [the module](super).
pub struct KeyParts<Key: ?Sized> {
    builders: Vec<(String, Box<dyn BuildLimit<Key>>)>,
}

impl<Key: ?Sized + 'static> KeyParts<Key> {
    /// Creates an empty collection.
    #[must_use]
    pub fn new() -> Self {
        Self { builders: Vec::new() }
    }

    /// Adds a sub-key for limits in memory. It replaces an earlier sub-key of the same name.
    #[must_use]
    pub fn add<SubKey, F>(self, name: impl Into<String>, sub_key: F) -> Self
    where
        SubKey: Hash + 'static,
        F: Fn(&Key) -> SubKey + Clone + Send + Sync + 'static,
    {
        self.with_builder(name.into(), Local(sub_key))
    }

    /// Adds a sub-key for limits in memory and in Redis. It replaces an earlier sub-key of the same name.
    #[must_use]
    pub fn add_shared<SubKey, F>(self, name: impl Into<String>, sub_key: F) -> Self
    where
        SubKey: Hash + EncodeKey + 'static,
        F: Fn(&Key) -> SubKey + Clone + Send + Sync + 'static,
    {
        self.with_builder(name.into(), Shared(sub_key))
    }

    fn with_builder(mut self, name: String, builder: impl BuildLimit<Key> + 'static) -> Self {
        self.builders.retain(|(other, _)| *other != name);
        self.builders.push((name, Box::new(builder)));
        self
    }

    /// Builds the limits of the policies, for [`Memory`](crate::Memory).
    ///
    /// # Errors
    ///
    /// Returns an error if a policy counts by an unknown sub-key, or if two policies have one name. The error names the
    /// policy and the field.
    pub fn limits(&self, policies: &[Policy]) -> Result<Vec<DynLimit<Key>>, Error> {
        self.build(policies, |builder, policy| Ok(builder.in_memory(policy)))
    }

    /// Builds the limits of the policies, for [`Redis`](crate::Redis).
    ///
    /// # Errors
    ///
    /// As [`limits`](Self::limits), and if a sub-key was not added with [`add_shared`](Self::add_shared).
    #[cfg(feature = "redis")]
    pub fn redis_limits(&self, policies: &[Policy]) -> Result<Vec<RedisLimit<Key>>, Error> {
        self.build(policies, |builder, policy| {
            builder.in_redis(policy).ok_or("this sub-key is for limits in memory; add it with `KeyParts::add_shared`")
        })
    }

    fn build<L>(
        &self,
        policies: &[Policy],
        build: impl Fn(&dyn BuildLimit<Key>, &Policy) -> Result<L, &'static str>,
    ) -> Result<Vec<L>, Error> {
        let build = |(index, policy): (usize, &Policy)| {
            if let Some(first) = policies[..index].iter().position(|other| other.name() == policy.name()) {
                return Err(field_error(
                    index,
                    policy,
                    "name",
                    &format!("limits[{first}] has it too; give each limit its own name"),
                ));
            }
            let builder = self.builders.iter().find(|(name, _)| name == policy.by()).map(|(_, builder)| builder);
            let builder = builder.ok_or_else(|| {
                let known: Vec<_> = self.builders.iter().map(|(name, _)| format!("{name:?}")).collect();
                let problem = format!("unknown sub-key {:?}; use one of {}", policy.by(), known.join(", "));
                field_error(index, policy, "by", &problem)
            })?;
            build(&**builder, policy).map_err(|problem| field_error(index, policy, "by", problem))
        };
        policies.iter().enumerate().map(build).collect()
    }
}

fn field_error(index: usize, policy: &Policy, field: &str, problem: &str) -> Error {
    Error::config(format!("limits[{index}] ({:?}), {field}: {problem}", policy.name()))
}

/// Evaluates an expression with the algorithm of a policy, whose type differs.
macro_rules! with_algorithm {
    ($policy:expr, $algorithm:ident => $result:expr) => {
        match $policy.built() {
            BuiltAlgorithm::Gcra($algorithm) => $result,
            BuiltAlgorithm::TokenBucket($algorithm) => $result,
            BuiltAlgorithm::LeakyBucket($algorithm) => $result,
            BuiltAlgorithm::LeakyQueue($algorithm) => $result,
            BuiltAlgorithm::FixedWindow($algorithm) => $result,
            BuiltAlgorithm::SlidingWindow($algorithm) => $result,
            BuiltAlgorithm::SlidingLog($algorithm) => $result,
            BuiltAlgorithm::InFlight($algorithm) => $result,
        }
    };
}

/// Builds the limit of a policy that counts by one sub-key.
trait BuildLimit<Key: ?Sized>: Send + Sync {
    fn in_memory(&self, policy: &Policy) -> DynLimit<Key>;

    /// Returns `None` if the sub-key has no encoding for Redis.
    #[cfg(feature = "redis")]
    fn in_redis(&self, _policy: &Policy) -> Option<RedisLimit<Key>> {
        None
    }
}

/// A sub-key for limits in memory.
struct Local<F>(F);

/// A sub-key for limits in memory and in Redis.
struct Shared<F>(F);

impl<Key, SubKey, F> BuildLimit<Key> for Local<F>
where
    Key: ?Sized + 'static,
    SubKey: Hash + 'static,
    F: Fn(&Key) -> SubKey + Clone + Send + Sync + 'static,
{
    fn in_memory(&self, policy: &Policy) -> DynLimit<Key> {
        with_algorithm!(policy, algorithm => DynLimit::new(limit_of(policy, algorithm, self.0.clone())))
    }
}

impl<Key, SubKey, F> BuildLimit<Key> for Shared<F>
where
    Key: ?Sized + 'static,
    SubKey: Hash + EncodeKey + 'static,
    F: Fn(&Key) -> SubKey + Clone + Send + Sync + 'static,
{
    fn in_memory(&self, policy: &Policy) -> DynLimit<Key> {
        with_algorithm!(policy, algorithm => DynLimit::new(limit_of(policy, algorithm, self.0.clone())))
    }

    #[cfg(feature = "redis")]
    fn in_redis(&self, policy: &Policy) -> Option<RedisLimit<Key>> {
        Some(with_algorithm!(policy, algorithm => RedisLimit::new(limit_of(policy, algorithm, self.0.clone()))))
    }
}

fn limit_of<Key, A, SubKey, F>(policy: &Policy, algorithm: A, sub_key: F) -> Limit<A, KeyedBy<F, SubKey>>
where
    Key: ?Sized,
    A: Algorithm,
    F: Fn(&Key) -> SubKey,
{
    let limit = Limit::new(policy.name().to_owned(), algorithm).keyed_by(sub_key).with_sub_key_name(policy.by());
    let limit = if policy.is_shadow() { limit.shadow() } else { limit };
    match policy.fixed_cost() {
        Some(cost) => limit.fixed_cost(cost),
        None => limit,
    }
}

impl<Key: ?Sized + 'static> Default for KeyParts<Key> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Key: ?Sized> fmt::Debug for KeyParts<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.builders.iter().map(|(name, _)| name)).finish()
    }
}
