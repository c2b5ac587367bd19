use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::key::{KeptFree, MAX_BY, Rule, Test};
use super::part::Part;
use crate::config::{Names, Policy, PolicyFields, Values, When, list_of};
use crate::error::Error;
use crate::key::Pepper;

/// The content of a file with limits: a list `limits`, and a table `conditions` of the names in `keep_free`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RoutePolicies {
    /// The limits.
    pub limits: Vec<RoutePolicy>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) conditions: BTreeMap<String, RouteCondition>,
}

/// Parts of requests and their values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct RouteCondition(BTreeMap<String, Values>);

impl<'de> Deserialize<'de> for RouteCondition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = BTreeMap::deserialize(deserializer)?;
        tests_of("conditions", &parts, &Pepper::of_process()).map_err(de::Error::custom)?;
        Ok(Self(parts))
    }
}

impl RouteCondition {
    /// Returns the routes that the condition names.
    pub(super) fn routes(&self) -> impl Iterator<Item = &str> {
        routes_in(&self.0)
    }
}

/// Returns the routes among the parts of a condition.
pub(super) fn routes_in(parts: &BTreeMap<String, Values>) -> impl Iterator<Item = &str> {
    parts.get("route").into_iter().flat_map(|values| values.names().0).map(String::as_str)
}

/// The configuration of one limit on requests: a [`Policy`] that names parts of requests.
///
/// | Field | Value |
/// |---|---|
/// | `by` | a part or a list of at most 4 parts: the limit counts each combination of their values separately. `"all"`: one count for all requests |
/// | `when` | parts and the values for which the limit applies: a text, a list of texts, or `{ not = .. }`. Default: all requests |
/// | `keep_free` | units that requests must leave to others, by the name of a condition: `keep_free = { bulk = 30 }`. The table `conditions` of the file says which parts and values a condition needs: `bulk = { "header:x-class" = "bulk" }` |
/// | all others | as [`Policy`], without `escalate` |
///
/// The error of an unknown part, or of a value that no request can have, has the position of the field. An address that is
/// not the first one of its prefix has no error, because only the extractor of addresses knows the prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RoutePolicy(Policy);

impl RoutePolicy {
    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.0
    }

    /// Returns the parts by which the limit counts, its condition, and the units that it keeps free.
    pub(super) fn rule(&self, pepper: &Pepper, conditions: &BTreeMap<String, RouteCondition>) -> Result<Rule, Error> {
        let mut rule = rule_of(self.0.fields(), pepper)?;
        for (name, units) in self.0.keep_free() {
            let Some(condition) = conditions.get(name) else {
                return Err(Error::config(format!(
                    "keep_free: unknown condition {name:?}; use one of [{}], or add it to the table `conditions`",
                    list_of(conditions.keys())
                )));
            };
            let tests = tests_of("conditions", &condition.0, pepper)?;
            rule.kept_free.push(Arc::new(KeptFree { tests, units }));
        }
        Ok(rule)
    }
}

impl<'de> Deserialize<'de> for RoutePolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let check = |fields: &PolicyFields| rule_of(fields, &Pepper::of_process()).map(|_| ());
        let fields = PolicyFields::deserialize_checked(deserializer, check)?;
        Policy::try_from(fields).map(Self).map_err(de::Error::custom)
    }
}

fn rule_of(fields: &PolicyFields, pepper: &Pepper) -> Result<Rule, Error> {
    if fields.escalate.is_some() {
        return Err(Error::config(
            "escalate: a file of routes has no escalations; remove it, or wrap `RouteLimits::limiter` in \
             `limiter::Escalating`, in a layer with `RouteLimits::extractor`",
        ));
    }
    let by = match &fields.by {
        Some(Names::One(all)) if all == "all" => &[],
        Some(names) if names.as_slice().len() > MAX_BY => {
            return Err(Error::config(format!("by: it names more than {MAX_BY} parts; remove some")));
        }
        Some(names) => names.as_slice(),
        None => &[],
    };
    let by = by.iter().map(|name| part("by", name, pepper)).collect::<Result<_, _>>()?;
    let when = match &fields.when {
        Some(When::Condition(name)) => {
            return Err(Error::config(format!(
                "when: {name:?} is no part with a value; write a table such as {{ route = \"/login\" }}"
            )));
        }
        Some(When::Parts(parts)) => tests_of("when", parts, pepper)?,
        None => Vec::new(),
    };
    Ok(Rule { by, when, kept_free: Vec::new() })
}

fn part(field: &str, name: &str, pepper: &Pepper) -> Result<Part, Error> {
    Part::new(name, pepper).map_err(|error| Error::config(format!("{field}: {error}")))
}

/// Returns the tests of a condition, the cheapest first.
fn tests_of(field: &str, parts: &BTreeMap<String, Values>, pepper: &Pepper) -> Result<Vec<Test>, Error> {
    let invalid = |problem: String| Error::config(format!("{field}: {problem}"));
    if parts.is_empty() {
        return Err(invalid("the table is empty; name a part of the request, or remove the field".to_owned()));
    }
    let mut tests = Vec::new();
    for (name, values) in parts {
        let part = part(field, name, pepper)?;
        let (names, is_negated) = values.names();
        if names.is_empty() {
            return Err(invalid(format!("the list of {name:?} is empty; add a value or remove the part")));
        }
        if let Some((value, problem)) = names.iter().find_map(|value| Some((value, part.problem_of(value)?))) {
            return Err(invalid(format!("no request has the {name} {value:?}: {problem}")));
        }
        let values = names.iter().map(|value| part.value_of(value)).collect();
        tests.push(Test { part, values, is_negated });
    }
    tests.sort_by_key(|test| test.part.order());
    Ok(tests)
}
