//! Reads a policy field by field, so that the error of a format points at the invalid field.

use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::AlgorithmName;
use super::fields::PolicyFields;
use crate::decision::WarnAt;
use crate::error::Error;
use crate::quota::Quota;

const FIELDS: &[&str] = &[
    "name",
    "algorithm",
    "quota",
    "max",
    "max_duration",
    "burst",
    "max_waiting",
    "aligned_to_clock",
    "blocks",
    "weighted",
    "by",
    "when",
    "fixed_cost",
    "unit",
    "shadow",
    "keep_free",
    "escalate",
    "block_for",
    "forget_after",
    "warn_at",
    "guarantee",
];

/// Before the first field is read. The three required fields are always replaced.
pub(super) const EMPTY: PolicyFields = PolicyFields {
    name: String::new(),
    algorithm: AlgorithmName::Gcra,
    quota: None,
    max: None,
    max_duration: None,
    burst: None,
    max_waiting: None,
    aligned_to_clock: None,
    blocks: None,
    weighted: None,
    by: String::new(),
    when: None,
    fixed_cost: None,
    unit: None,
    shadow: false,
    keep_free: None,
    escalate: None,
    block_for: None,
    forget_after: None,
    warn_at: None,
    guarantee: None,
};

/// The fields that were read.
struct Read {
    fields: PolicyFields,
    is_read: [bool; FIELDS.len()],
}

impl Read {
    fn has(&self, name: &str) -> bool {
        FIELDS.iter().zip(self.is_read).any(|(field, is_read)| is_read && *field == name)
    }

    /// Returns the error of a field that was just read, if no other field can make it valid.
    ///
    /// An error of a field that was read earlier has no position any more: it is reported for the whole policy.
    fn error_of(&self, name: &str) -> Option<Error> {
        let is_own = |error: &Error| error.to_string().strip_prefix(name).is_some_and(|rest| rest.starts_with(": "));
        self.check().err().filter(is_own)
    }

    fn check(&self) -> Result<(), Error> {
        if self.has("name") {
            self.fields.check_name()?;
        }
        self.fields.check_cost()?;
        if self.has("escalate") {
            self.fields.build_escalation()?;
        }
        self.fields.check_mark()?;
        self.fields.check_guarantee()?;
        if !self.has("algorithm") {
            return Ok(());
        }
        self.fields.reject_inapplicable()?;
        let has_rate = self.has("quota") || (self.fields.algorithm == AlgorithmName::InFlight && self.has("max"));
        // More blocks can make a weighted window valid.
        let is_open = self.has("weighted") && !self.has("blocks");
        if !has_rate {
            // A burst and a queue that are invalid with the highest rate are invalid with every rate.
            let fastest = Quota::per_second(MAX_PER_SECOND);
            PolicyFields { quota: Some(fastest), blocks: None, weighted: None, ..self.fields.clone() }.build()?;
        } else if !is_open {
            self.fields.build()?;
        }
        Ok(())
    }
}

/// One request per microsecond.
const MAX_PER_SECOND: u64 = 1_000_000;

impl<'de> Deserialize<'de> for PolicyFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Policy", FIELDS, PolicyVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = PolicyFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit with the fields `name`, `algorithm`, `quota` and `by`")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<PolicyFields, M::Error> {
        let mut read = Read { fields: EMPTY, is_read: [false; FIELDS.len()] };
        while let Some(field) = map.next_key_seed(FieldName)? {
            map.next_value_seed(FieldValue { read: &mut read, field })?;
        }
        match ["name", "algorithm", "by"].into_iter().find(|name| !read.has(name)) {
            Some(missing) => Err(de::Error::missing_field(missing)),
            None => Ok(read.fields),
        }
    }
}

/// Reads the name of a field as its index in `FIELDS`.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<usize, E> {
        FIELDS.iter().position(|field| *field == name).ok_or_else(|| E::unknown_field(name, FIELDS))
    }
}

/// Reads a value. An error begins with the name of the field.
fn read_value<'de, T: Deserialize<'de>, D: Deserializer<'de>>(name: &str, value: D) -> Result<T, D::Error> {
    // Some formats end a message with a new line, and would add another one.
    T::deserialize(value).map_err(|error| de::Error::custom(format_args!("{name}: {}", error.to_string().trim_end())))
}

/// Reads the value of a field, and checks what was read so far: an error of this seed has the position of the value.
struct FieldValue<'a> {
    read: &'a mut Read,
    field: usize,
}

impl<'de> DeserializeSeed<'de> for FieldValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let Self { read, field } = self;
        let name = FIELDS.get(field).copied().unwrap_or_default();
        if read.has(name) {
            return Err(de::Error::duplicate_field(name));
        }
        let fields = &mut read.fields;
        match name {
            "name" => fields.name = read_value(name, value)?,
            "algorithm" => fields.algorithm = read_value(name, value)?,
            "quota" => fields.quota = read_value(name, value)?,
            "max" => fields.max = read_value(name, value)?,
            "max_duration" => fields.max_duration = read_value(name, value)?,
            "burst" => fields.burst = read_value(name, value)?,
            "max_waiting" => fields.max_waiting = read_value(name, value)?,
            "aligned_to_clock" => fields.aligned_to_clock = read_value(name, value)?,
            "blocks" => fields.blocks = read_value(name, value)?,
            "weighted" => fields.weighted = read_value(name, value)?,
            "by" => fields.by = read_value(name, value)?,
            "when" => fields.when = read_value(name, value)?,
            "fixed_cost" => fields.fixed_cost = read_value(name, value)?,
            "unit" => fields.unit = read_value(name, value)?,
            "keep_free" => fields.keep_free = Some(read_value(name, value)?),
            "escalate" => fields.escalate = read_value(name, value)?,
            "block_for" => fields.block_for = read_value(name, value)?,
            "forget_after" => fields.forget_after = read_value(name, value)?,
            "warn_at" => fields.warn_at = Some(WarnAt::new(read_value(name, value)?)),
            "guarantee" => fields.guarantee = read_value(name, value)?,
            _ => fields.shadow = read_value(name, value)?,
        }
        if let Some(is_read) = read.is_read.get_mut(field) {
            *is_read = true;
        }
        read.error_of(name).map_or(Ok(()), |error| Err(de::Error::custom(error)))
    }
}
