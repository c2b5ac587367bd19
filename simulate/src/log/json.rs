//! JSON lines: one object per line.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::fields::Fields;

/// Reads the wanted fields of one object. A field whose value is null is absent.
pub(super) fn read(line: &str, fields: &mut Fields) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_str(line);
    json.deserialize_map(Object(fields)).and_then(|()| json.end()).map_err(|error| error.to_string())
}

struct Object<'a>(&'a mut Fields);

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(index) = map.next_key_seed(FieldIndex(self.0))? {
            match index {
                Some(index) => map.next_value_seed(Scalar { fields: self.0, index })?,
                None => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// Reads the name of a field as its index, `None` if it is not wanted.
struct FieldIndex<'a>(&'a Fields);

impl<'de> DeserializeSeed<'de> for FieldIndex<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldIndex<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.index_of(name))
    }
}

/// Reads a text, a number or a truth value as the text of a field.
struct Scalar<'a> {
    fields: &'a mut Fields,
    index: usize,
}

impl<'de> DeserializeSeed<'de> for Scalar<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Scalar<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text or a number in the field {:?}", self.fields.name(self.index))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.fields.set(self.index, text);
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.fields.set(self.index, &number.to_string());
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.fields.set(self.index, &number.to_string());
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        self.fields.set(self.index, &number.to_string());
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.fields.set(self.index, if value { "true" } else { "false" });
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }
}
