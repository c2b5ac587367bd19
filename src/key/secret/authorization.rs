use http::{HeaderMap, header};

use super::cookie::is_token;
use crate::key::MissingKey;

/// A scheme of the header `Authorization`, with the reasons for a missing key.
pub(super) struct Scheme {
    /// Without regard to case (RFC 9110, section 11.1).
    pub(super) name: &'static str,
    pub(super) missing: &'static str,
    pub(super) other: &'static str,
    pub(super) malformed: &'static str,
}

impl Scheme {
    /// Returns the credentials of this scheme: not empty, and without white space around them.
    ///
    /// A value other than a scheme, a space and credentials is malformed, and therefore unusable: an application may
    /// still find credentials in it.
    pub(super) fn credentials<'a>(&self, headers: &'a HeaderMap) -> Result<&'a [u8], MissingKey> {
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        let value = match (lines.next(), lines.next()) {
            (Some(line), None) => line.as_bytes().trim_ascii(),
            (Some(_), Some(_)) => return Err(unusable("is repeated")),
            (None, _) => return Err(absent(self.missing)),
        };
        let Some(space) = value.iter().position(|byte| *byte == b' ') else {
            return Err(unusable(if value.is_empty() { "is empty" } else { self.malformed }));
        };
        let (scheme, credentials) = (&value[..space], value[space..].trim_ascii());
        if scheme.eq_ignore_ascii_case(self.name.as_bytes()) {
            let is_one_word = !credentials.iter().any(u8::is_ascii_whitespace);
            if is_one_word { Ok(credentials) } else { Err(self.malformed()) }
        } else if is_token(scheme) {
            Err(absent(self.other))
        } else {
            Err(self.malformed())
        }
    }

    pub(super) fn malformed(&self) -> MissingKey {
        unusable(self.malformed)
    }
}

fn absent(problem: &'static str) -> MissingKey {
    MissingKey::absent_header(&header::AUTHORIZATION, problem)
}

fn unusable(problem: &'static str) -> MissingKey {
    MissingKey::unusable_header(&header::AUTHORIZATION, problem)
}
