//! The names in a policy: by which parts a limit counts, and to which requests it applies.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One name or a list of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name such as \"user\", or a list of names")]
pub(crate) enum Names {
    One(String),
    Several(Vec<String>),
}

/// The condition of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a condition, or parts of a request with a value, a list of values or `{ not = .. }`: { \
                 route = \"/login\", method = [\"POST\", \"PUT\"] }"
)]
pub(crate) enum When {
    /// The name of a condition of [`KeyParts`](super::KeyParts).
    Condition(String),
    /// The parts of a request and their values.
    Parts(BTreeMap<String, Values>),
}

/// The values of a part to which a limit applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum Values {
    Of(Names),
    Not { not: Names },
}

impl Names {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

impl Values {
    /// Returns the names, and whether the limit applies to all other values instead.
    pub(crate) fn names(&self) -> (&[String], bool) {
        match self {
            Self::Of(names) => (names.as_slice(), false),
            Self::Not { not } => (not.as_slice(), true),
        }
    }
}

/// The names, joined by `+`.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_slice().join("+"))
    }
}

/// The name of the condition, or the parts as in `method=POST|PUT,route!=/login`.
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self {
            Self::Condition(name) => return f.write_str(name),
            Self::Parts(parts) => parts,
        };
        for (index, (part, values)) in parts.iter().enumerate() {
            let (names, is_negated) = values.names();
            let (separator, equals) = (if index == 0 { "" } else { "," }, if is_negated { "!=" } else { "=" });
            write!(f, "{separator}{part}{equals}{}", names.join("|"))?;
        }
        Ok(())
    }
}
