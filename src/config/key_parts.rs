use std::fmt;
use std::hash::Hash;

use super::{BuiltAlgorithm, Policy};
use crate::error::Error;
use crate::limit::{IntoLimit, Limit};
use crate::store::DynLimit;

/// What policies can count by, under the names that configuration uses: see [the module](super).
pub struct KeyParts<Key: ?Sized> {
    parts: Vec<(String, Box<BuildLimit<Key>>)>,
}

type BuildLimit<Key> = dyn Fn(&Policy) -> DynLimit<Key> + Send + Sync;

impl<Key: ?Sized + 'static> KeyParts<Key> {
    /// Nothing to count by yet.
    #[must_use]
    pub fn new() -> Self {
        Self { parts: Vec::new() }
    }

    /// Adds a part of the key. A later one of the same name takes the place of an earlier one.
    #[must_use]
    pub fn add<Part, F>(mut self, name: impl Into<String>, part: F) -> Self
    where
        Part: Hash + 'static,
        F: Fn(&Key) -> Part + Clone + Send + Sync + 'static,
    {
        let name = name.into();
        self.parts.retain(|(there, _)| *there != name);
        self.parts.push((name, Box::new(move |policy| build_limit(policy, part.clone()))));
        self
    }

    /// The limits that the policies say.
    ///
    /// # Errors
    ///
    /// If a policy counts by what is not known here, or two have the same name. The error says which, and where.
    pub fn limits(&self, policies: &[Policy]) -> Result<Vec<DynLimit<Key>>, Error> {
        let make = |(index, policy): (usize, &Policy)| {
            if let Some(first) = policies[..index].iter().position(|other| other.name() == policy.name()) {
                return Err(field_error(
                    index,
                    policy,
                    "name",
                    &format!("it is that of limits[{first}] too; give each its own"),
                ));
            }
            let make = self.parts.iter().find(|(name, _)| name == policy.by()).map(|(_, make)| make);
            let make = make.ok_or_else(|| {
                let known: Vec<_> = self.parts.iter().map(|(name, _)| format!("{name:?}")).collect();
                let problem = format!("{:?} is not known; it must be one of {}", policy.by(), known.join(", "));
                field_error(index, policy, "by", &problem)
            })?;
            Ok(make(policy))
        };
        policies.iter().enumerate().map(make).collect()
    }
}

fn field_error(index: usize, policy: &Policy, field: &str, problem: &str) -> Error {
    Error::config(format!("limits[{index}] ({:?}), {field}: {problem}", policy.name()))
}

fn build_limit<Key, Part, F>(policy: &Policy, part: F) -> DynLimit<Key>
where
    Key: ?Sized + 'static,
    Part: Hash + 'static,
    F: Fn(&Key) -> Part + Send + Sync + 'static,
{
    match policy.built() {
        BuiltAlgorithm::Gcra(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::TokenBucket(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::LeakyBucket(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::LeakyQueue(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::FixedWindow(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::SlidingWindow(algorithm) => limit(policy, algorithm, part),
        BuiltAlgorithm::SlidingLog(algorithm) => limit(policy, algorithm, part),
    }
}

fn limit<Key, A, Part, F>(policy: &Policy, algorithm: A, part: F) -> DynLimit<Key>
where
    Key: ?Sized + 'static,
    A: crate::algorithm::Algorithm,
    Part: Hash + 'static,
    F: Fn(&Key) -> Part + Send + Sync + 'static,
{
    let limit = Limit::new(policy.name().to_owned(), algorithm).keyed_by(part).with_sub_key_name(policy.by());
    DynLimit::new(if policy.is_shadow() { limit.shadow() } else { limit }.into_limit())
}

impl<Key: ?Sized + 'static> Default for KeyParts<Key> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Key: ?Sized> fmt::Debug for KeyParts<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.parts.iter().map(|(name, _)| name)).finish()
    }
}
