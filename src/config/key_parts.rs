use std::fmt;
use std::hash::Hash;

use super::{BuiltAlgorithm, Policy};
use crate::error::Error;
use crate::limit::{IntoLimit, Limit};
use crate::store::DynLimit;

/// The sub-keys by which policies count, by their names in configuration: see [the module](super).
pub struct KeyParts<Key: ?Sized> {
    builders: Vec<(String, Box<BuildLimit<Key>>)>,
}

type BuildLimit<Key> = dyn Fn(&Policy) -> DynLimit<Key> + Send + Sync;

impl<Key: ?Sized + 'static> KeyParts<Key> {
    /// Creates an empty collection.
    #[must_use]
    pub fn new() -> Self {
        Self { builders: Vec::new() }
    }

    /// Adds a sub-key. It replaces an earlier sub-key of the same name.
    #[must_use]
    pub fn add<SubKey, F>(mut self, name: impl Into<String>, sub_key: F) -> Self
    where
        SubKey: Hash + 'static,
        F: Fn(&Key) -> SubKey + Clone + Send + Sync + 'static,
    {
        let name = name.into();
        self.builders.retain(|(other, _)| *other != name);
        self.builders.push((name, Box::new(move |policy| build_limit(policy, sub_key.clone()))));
        self
    }

    /// Builds the limits of the policies.
    ///
    /// # Errors
    ///
    /// Returns an error if a policy counts by an unknown sub-key, or if two policies have one name. The error names the
    /// policy and the field.
    pub fn limits(&self, policies: &[Policy]) -> Result<Vec<DynLimit<Key>>, Error> {
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
            Ok(builder(policy))
        };
        policies.iter().enumerate().map(build).collect()
    }
}

fn field_error(index: usize, policy: &Policy, field: &str, problem: &str) -> Error {
    Error::config(format!("limits[{index}] ({:?}), {field}: {problem}", policy.name()))
}

fn build_limit<Key, SubKey, F>(policy: &Policy, sub_key: F) -> DynLimit<Key>
where
    Key: ?Sized + 'static,
    SubKey: Hash + 'static,
    F: Fn(&Key) -> SubKey + Send + Sync + 'static,
{
    match policy.built() {
        BuiltAlgorithm::Gcra(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::TokenBucket(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::LeakyBucket(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::LeakyQueue(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::FixedWindow(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::SlidingWindow(algorithm) => limit_with(policy, algorithm, sub_key),
        BuiltAlgorithm::SlidingLog(algorithm) => limit_with(policy, algorithm, sub_key),
    }
}

fn limit_with<Key, A, SubKey, F>(policy: &Policy, algorithm: A, sub_key: F) -> DynLimit<Key>
where
    Key: ?Sized + 'static,
    A: crate::algorithm::Algorithm,
    SubKey: Hash + 'static,
    F: Fn(&Key) -> SubKey + Send + Sync + 'static,
{
    let limit = Limit::new(policy.name().to_owned(), algorithm).keyed_by(sub_key).with_sub_key_name(policy.by());
    DynLimit::new(if policy.is_shadow() { limit.shadow() } else { limit }.into_limit())
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
