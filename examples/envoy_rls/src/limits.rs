//! The limits of the file, and the descriptors to which they apply.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use tower_ratelimit::config::{KeyParts, Policy};
use tower_ratelimit::{BoxLimiter, Memory, Redis, RedisServer};

pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The key of a request: the entries of its descriptors.
#[derive(Clone, Default, Hash)]
pub(crate) struct Call {
    pub(crate) descriptors: Vec<Entries>,
    /// The names of the limits to which the request reports usage.
    pub(crate) reported: Vec<String>,
    /// Whether only these limits apply, or only the others.
    pub(crate) is_report: bool,
}

/// The entries of one descriptor: their keys and values.
pub(crate) type Entries = Vec<(String, String)>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    domain: String,
    limits: Vec<Policy>,
    /// The names of the limits whose usage Envoy reports after the response.
    #[serde(default)]
    reported: Vec<String>,
}

/// The limits of a domain.
pub(crate) struct Limits {
    pub(crate) domain: String,
    pub(crate) rules: Vec<Rule>,
}

/// One limit, and the descriptors to which it applies.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    /// For `Costs`, which names units by static text.
    pub(crate) unit: Option<&'static str>,
    /// Envoy asks without hits, and reports them after the response.
    pub(crate) is_reported: bool,
    pattern: Pattern,
    /// The indices of the entries by whose values the limit counts.
    counted: Vec<usize>,
}

/// For each entry the key, and the value if the limit applies to one value only.
type Pattern = Vec<(String, Option<String>)>;

impl Limits {
    pub(crate) fn read(path: &Path) -> Result<Self, AnyError> {
        let file: File = toml::from_str(&fs::read_to_string(path)?)?;
        let mut rules = file.limits.into_iter().map(Rule::new).collect::<Result<Vec<_>, _>>()?;
        for name in &file.reported {
            let rule = rules.iter_mut().find(|rule| rule.policy.name() == name && rule.unit.is_some());
            rule.ok_or_else(|| format!("reported: there is no limit {name:?} with a `unit`"))?.is_reported = true;
        }
        for (index, rule) in rules.iter().enumerate() {
            let is_other = |other: &&Rule| other.unit == rule.unit && other.pattern != rule.pattern;
            if let (Some(unit), Some(other)) = (rule.unit, rules[..index].iter().find(is_other)) {
                let other = other.policy.name();
                return Err(rule
                    .error("unit", &format!("limit {other:?} counts {unit:?} of another descriptor"))
                    .into());
            }
        }
        Ok(Self { domain: file.domain, rules })
    }

    /// Builds the limiter, in Redis if there is a URL.
    pub(crate) fn build(&self, redis_url: Option<&str>) -> Result<BoxLimiter<Call>, AnyError> {
        // Each limit has sub-keys and conditions of its own.
        if let Some(url) = redis_url {
            let limits = self.rules.iter().map(|rule| rule.parts().redis_limits(std::slice::from_ref(&rule.policy)));
            let limits = limits.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>();
            return Ok(BoxLimiter::new(Redis::builder(RedisServer::open(url)?, &self.domain, limits).build()?));
        }
        let limits = self.rules.iter().map(|rule| rule.parts().limits(std::slice::from_ref(&rule.policy)));
        let limits = limits.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>();
        Ok(BoxLimiter::new(Memory::builder(limits).build()?))
    }
}

impl Rule {
    fn new(policy: Policy) -> Result<Self, String> {
        let when = policy.when().unwrap_or_default();
        let entry = |text: &str| match text.split_once('=') {
            Some((key, value)) => (key.trim().to_owned(), Some(value.trim().to_owned())),
            None => (text.trim().to_owned(), None),
        };
        let pattern: Pattern = when.split(',').map(entry).collect();
        let unit = policy.unit().map(|unit| &*Box::leak(unit.to_owned().into_boxed_str()));
        let mut rule = Self { policy, unit, is_reported: false, pattern, counted: Vec::new() };
        if rule.pattern.iter().any(|(key, _)| key.is_empty()) {
            return Err(
                rule.error("when", "it names no descriptor; list the keys of its entries, as in \"path=/login, user\"")
            );
        }
        if rule.policy.quota().is_none() {
            return Err(rule.error("algorithm", "Envoy does not report the end of a request; use a limit with a quota"));
        }
        for by in rule.policy.by().split(',').map(str::trim).filter(|by| *by != "all") {
            let index = rule.pattern.iter().position(|(key, _)| key == by);
            rule.counted
                .push(index.ok_or_else(|| rule.error("by", &format!("`when` has no entry {by:?}; add it there")))?);
        }
        Ok(rule)
    }

    fn error(&self, field: &str, problem: &str) -> String {
        format!("limit {:?}, {field}: {problem}", self.policy.name())
    }

    pub(crate) fn matches(&self, entries: &Entries) -> bool {
        let is_same = |((key, value), (name, expected)): (&(String, String), &(String, Option<String>))| {
            key == name && expected.as_ref().is_none_or(|expected| expected == value)
        };
        entries.len() == self.pattern.len() && entries.iter().zip(&self.pattern).all(is_same)
    }

    fn parts(&self) -> KeyParts<Call> {
        let (rule, other) = (self.clone(), self.clone());
        let descriptor = |rule: &Self, call: &Call| call.descriptors.iter().position(|entries| rule.matches(entries));
        let counted = move |call: &Call| {
            let entries = descriptor(&rule, call).and_then(|index| call.descriptors.get(index));
            let values =
                entries.into_iter().flat_map(|entries| rule.counted.iter().filter_map(|&index| entries.get(index)));
            // With their lengths, so that different values have different sub-keys.
            values.fold(String::new(), |text, (_, value)| format!("{text}{}:{value}", value.len()))
        };
        KeyParts::new().add(self.policy.by(), counted).add_condition(
            self.policy.when().unwrap_or_default(),
            move |call| {
                let is_reported = call.reported.iter().any(|name| name == other.policy.name());
                is_reported == call.is_report && descriptor(&other, call).is_some()
            },
        )
    }
}
