use serde::{Deserialize, Deserializer, Serialize, de};

use super::key::{MAX_BY, Rule, Test};
use super::part::Part;
use crate::config::{Names, Policy, PolicyFields, When};
use crate::error::Error;
use crate::key::Pepper;

/// The content of a file with limits: a list `limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RoutePolicies {
    /// The limits.
    pub limits: Vec<RoutePolicy>,
}

/// The configuration of one limit on requests: a [`Policy`] that names parts of requests.
///
/// | Field | Value |
/// |---|---|
/// | `by` | a part or a list of at most 4 parts: the limit counts each combination of their values separately. `"all"`: one count for all requests |
/// | `when` | parts and the values for which the limit applies: a text, a list of texts, or `{ not = .. }`. Default: all requests |
/// | all others | as [`Policy`], without `keep_free` and `escalate` |
///
/// The error of an unknown part, or of a value that no request can have, has the position of the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RoutePolicy(Policy);

impl RoutePolicy {
    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0
    }

    /// Returns the parts by which the limit counts, and its condition.
    pub(super) fn rule(&self, pepper: &Pepper) -> Result<Rule, Error> {
        rule_of(self.0.fields(), pepper)
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
    if fields.keep_free.is_some() {
        return Err(Error::config("keep_free: it names a condition, and a file of routes has none; remove it"));
    }
    if fields.escalate.is_some() {
        return Err(Error::config(
            "escalate: a file of routes has no escalations; remove it, or use `limiter::Escalating` in code",
        ));
    }
    let part = |field: &str, name: &String| {
        Part::new(name, pepper).map_err(|error| Error::config(format!("{field}: {error}")))
    };
    let by = match &fields.by {
        Some(Names::One(all)) if all == "all" => &[],
        Some(names) if names.as_slice().len() > MAX_BY => {
            return Err(Error::config(format!("by: it names more than {MAX_BY} parts; remove some")));
        }
        Some(names) => names.as_slice(),
        None => &[],
    };
    let by = by.iter().map(|name| part("by", name)).collect::<Result<_, _>>()?;
    let parts = match &fields.when {
        Some(When::Condition(name)) => {
            return Err(Error::config(format!(
                "when: {name:?} is no part with a value; write a table such as {{ route = \"/login\" }}"
            )));
        }
        Some(When::Parts(parts)) if parts.is_empty() => {
            return Err(Error::config("when: the table is empty; name a part of the request, or remove the field"));
        }
        Some(When::Parts(parts)) => Some(parts),
        None => None,
    };
    let mut when = Vec::new();
    for (name, values) in parts.into_iter().flatten() {
        let part = part("when", name)?;
        let (names, is_negated) = values.names();
        if names.is_empty() {
            return Err(Error::config(format!("when: the list of {name:?} is empty; add a value or remove the part")));
        }
        if let Some((value, problem)) = names.iter().find_map(|value| Some((value, part.problem_of(value)?))) {
            return Err(Error::config(format!("when: no request has the {name} {value:?}: {problem}")));
        }
        let values = names.iter().map(|value| part.value_of(value)).collect();
        when.push(Test { part, values, is_negated });
    }
    when.sort_by_key(|test| test.part.order());
    Ok(Rule { by, when })
}
