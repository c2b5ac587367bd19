use http::{HeaderMap, header};

use super::cookie::is_token;
use crate::key::MissingKey;
use crate::key::request::only_value;

/// A scheme of the header `Authorization`, with the reasons for a missing key.
pub(super) struct Scheme {
    /// Without regard to case (RFC 9110, section 11.1).
    name: &'static str,
    missing: &'static str,
    other: &'static str,
    malformed: &'static str,
}

impl Scheme {
    /// Returns the credentials of this scheme: not empty, and without white space around them.
    ///
    /// A value other than a scheme, a space and credentials is malformed, and therefore unusable: an application may
    /// still find credentials in it.
    pub(super) fn credentials<'a>(&self, headers: &'a HeaderMap) -> Result<&'a [u8], MissingKey> {
        let value = match only_value(headers, &header::AUTHORIZATION) {
            Err(missing) if !missing.is_unusable() => return Err(absent(self.missing)),
            found => found?,
        };
        let Some(space) = value.iter().position(|byte| *byte == b' ') else { return Err(self.malformed()) };
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

pub(super) const BEARER: Scheme = Scheme {
    name: "Bearer",
    missing: "is missing: expected a bearer token",
    other: "contains no bearer token",
    malformed: "is malformed: expected \"Bearer\", a space and the token",
};

pub(super) const BASIC: Scheme = Scheme {
    name: "Basic",
    missing: "is missing: expected Basic credentials",
    other: "contains no Basic credentials",
    malformed: "is malformed: expected \"Basic\", a space, and a user name and a password in base64",
};

/// Returns the text before the first colon of the decoded credentials, unless it is empty.
pub(super) fn user_name(credentials: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = decode_base64(credentials)?;
    let colon = decoded.iter().position(|byte| *byte == b':').filter(|colon| *colon > 0)?;
    decoded.truncate(colon);
    Some(decoded)
}

/// Decodes base64 as the most lenient decoders do: both alphabets, any padding, and any unused bits.
///
/// A spelling that was rejected here, and accepted by the application, could not be counted.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let len = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let mut decoded = Vec::with_capacity(len);
    for group in text[..len].chunks(4) {
        if group.len() == 1 {
            return None;
        }
        let mut bits = 0;
        for digit in group {
            bits = bits << 6 | u32::from(value_of(*digit)?);
        }
        bits <<= 6 * (4 - group.len());
        decoded.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(decoded)
}

const fn value_of(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}
