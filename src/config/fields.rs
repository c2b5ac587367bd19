//! Deserialises the fields of a policy: an error of a value begins with the name of its field.
//!
//! serde calls these functions while it reads the value, so the error keeps the position of the value in the text.

use serde::{Deserialize, Deserializer, de};

use super::AlgorithmName;
use crate::quota::Quota;

macro_rules! fields {
    ($($field:ident: $type:ty),+ $(,)?) => {
        $(pub(super) fn $field<'de, D: Deserializer<'de>>(value: D) -> Result<$type, D::Error> {
            <$type>::deserialize(value)
                .map_err(|error| de::Error::custom(format_args!(concat!(stringify!($field), ": {}"), error)))
        })+
    };
}

fields! {
    name: String,
    algorithm: AlgorithmName,
    quota: Option<Quota>,
    max: Option<u64>,
    max_duration: Option<String>,
    burst: Option<u64>,
    max_waiting: Option<u64>,
    aligned_to_clock: Option<bool>,
    blocks: Option<u64>,
    weighted: Option<bool>,
    by: String,
    fixed_cost: Option<u64>,
    shadow: bool,
}
