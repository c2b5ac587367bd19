//! Reads a policy field by field, so that the error of a format points at the invalid field.

use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::AlgorithmName;
use super::calendar::ConfiguredQuota;
use super::fields::PolicyFields;
use crate::error::Error;
use crate::quota::Quota;

/// One request per microsecond.
const MAX_PER_SECOND: u64 = 1_000_000;

impl PolicyFields {
    /// Checks the fields that were read.
    fn check_read(&self) -> Result<(), Error> {
        self.check_values()?;
        if self.escalate.is_some() {
            self.build_escalation()?;
        }
        let Some(algorithm) = self.algorithm else { return Ok(()) };
        self.reject_inapplicable()?;
        let has_rate = self.quota.is_some() || (algorithm == AlgorithmName::InFlight && self.max.is_some());
        // More blocks can make a weighted window valid.
        let is_open = self.weighted.is_some() && self.blocks.is_none();
        if self.may_be_calendar() {
            return Ok(());
        }
        if !has_rate {
            // A burst and a queue that are invalid with the highest rate are invalid with every rate.
            let fastest = Quota::per_second(MAX_PER_SECOND);
            Self { quota: Some(ConfiguredQuota::Fixed(fastest)), blocks: None, weighted: None, ..self.clone() }
                .build()?;
        } else if !is_open {
            self.build()?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for PolicyFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize_checked(deserializer, |_| Ok(()))
    }
}

/// Checks the fields that were read. An error begins with the name of its field.
type Check = fn(&PolicyFields) -> Result<(), Error>;

impl PolicyFields {
    /// Reads the fields with a further check of each, so that its error points at the field too.
    pub(crate) fn deserialize_checked<'de, D: Deserializer<'de>>(
        deserializer: D,
        check: Check,
    ) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Policy", Self::NAMES, PolicyVisitor(check))
    }
}

struct PolicyVisitor(Check);

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = PolicyFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit with the fields `name`, `algorithm`, `quota` and `by`")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<PolicyFields, M::Error> {
        let mut fields = PolicyFields::default();
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(FieldValue { fields: &mut fields, name: &name, check: self.0 })?;
        }
        let required =
            [("name", fields.name.is_none()), ("algorithm", fields.algorithm.is_none()), ("by", fields.by.is_none())];
        let missing = required.into_iter().find(|(_, is_missing)| *is_missing).map(|(name, _)| name);
        // Here an error has the position of the policy, and not of the list of policies.
        let of = fields.name.as_ref().map(|name| format!(" in the limit {name:?}")).unwrap_or_default();
        if let Some(missing) = missing {
            return Err(de::Error::custom(format_args!("missing field `{missing}`{of}")));
        }
        match fields.check().and_then(|_| (self.0)(&fields)) {
            Ok(()) => Ok(fields),
            Err(error) => Err(de::Error::custom(format_args!("{error}{of}"))),
        }
    }
}

/// Returns whether an error is of the field that was just read, so that no later field can make the field valid.
///
/// An error of a field that was read earlier has no position any more: it is reported for the whole policy.
fn is_of(field: &str, error: &Error) -> bool {
    error.to_string().strip_prefix(field).is_some_and(|rest| rest.starts_with(": "))
}

/// Reads the value of a field, and checks what was read so far: an error of this seed has the position of the value.
struct FieldValue<'a> {
    fields: &'a mut PolicyFields,
    name: &'a str,
    check: Check,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        self.fields.read(self.name, value)?;
        let error = self.fields.check_read().and_then(|()| (self.check)(self.fields)).err();
        error.filter(|error| is_of(self.name, error)).map_or(Ok(()), |error| Err(de::Error::custom(error)))
    }
}
