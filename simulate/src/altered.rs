//! Policies that differ from a given one in some fields.

use serde_json::Value;

use tower_ratelimit::Error;
use tower_ratelimit::config::Policy;

/// Returns the policy with other values of these fields, or without those that are null. The fields are validated as in configuration.
pub(super) fn altered<const N: usize>(policy: &Policy, fields: [(&str, Value); N]) -> Result<Policy, Error> {
    let invalid = |error: serde_json::Error| {
        Error::config(format!("policy {:?} cannot be altered: {error}", policy.name())).with_source(error)
    };
    let mut value = serde_json::to_value(policy).map_err(invalid)?;
    for (name, field) in fields {
        value[name] = field;
    }
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    serde_json::from_value(value).map_err(invalid)
}
