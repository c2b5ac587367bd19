use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, header};
use percent_encoding::percent_decode;

use crate::key::MissingKey;

/// Returns the decoded value of the only cookie of this name, without quotes.
pub(super) fn value<'a>(headers: &'a HeaderMap, name: &Arc<str>) -> Result<Cow<'a, [u8]>, MissingKey> {
    let unusable = |problem| Err(MissingKey::unusable_cookie(name, problem));
    let mut values = values(headers, name.as_bytes());
    let value = match (values.next(), values.next()) {
        (Some(value), None) => match percent_decode(value).into() {
            Cow::Borrowed(value) => Cow::Borrowed(trim_quotes(value)),
            Cow::Owned(value) => Cow::Owned(trim_quotes(&value).to_vec()),
        },
        (Some(_), Some(_)) => return unusable("is repeated"),
        (None, _) => return Err(MissingKey::absent_cookie(name)),
    };
    match &*value {
        [] => unusable("is empty"),
        text if str::from_utf8(text).is_err() => unusable("is malformed"),
        _ => Ok(value),
    }
}

/// Returns the encoded values of all cookies of this name.
///
/// HTTP/2 may split the header into several lines (RFC 9113, section 8.2.3).
fn values<'a>(headers: &'a HeaderMap, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs =
        headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let found = trimmed(found);
        // Not all applications decode names, so an encoded name matches in both spellings.
        let is_named = found == name || percent_decode(found).eq(name.iter().copied());
        is_named.then_some(trimmed(&value[1..]))
    })
}

/// Trims Unicode white space, or ASCII white space if the text is not UTF-8.
fn trimmed(text: &[u8]) -> &[u8] {
    str::from_utf8(text).map_or(text.trim_ascii(), |text| text.trim().as_bytes())
}

fn trim_quotes(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// `token` of RFC 9110.
pub(super) fn is_token(text: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_char)
}
