//! Reads response header fields as a client does, with an independent parser of structured fields.

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};

/// Reads `RateLimit-Policy`: name, quota and window in seconds, which is 0 if the field states none.
pub(crate) fn policies(headers: &HeaderMap) -> Vec<(String, i64, i64)> {
    let policies = members(headers, "ratelimit-policy", ["q", "w"]).into_iter();
    let window = |w: Option<i64>| w.inspect(|w| assert!(*w > 0, "{w}")).unwrap_or(0);
    policies.map(|(name, [q, w])| (name, q.expect("a quota"), window(w))).collect()
}

/// Reads `RateLimit`: name, remaining, and seconds until more is available.
pub(crate) fn limits(headers: &HeaderMap) -> Vec<(String, i64, Option<i64>)> {
    let limits = members(headers, "ratelimit", ["r", "t"]).into_iter();
    limits.map(|(name, [r, t])| (name, r.expect("a remainder"), t)).collect()
}

/// Reads a List of Strings that have these parameters and no others. Lines are joined as in RFC 9110.
fn members<const N: usize>(headers: &HeaderMap, field: &str, keys: [&str; N]) -> Vec<(String, [Option<i64>; N])> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|line| line.to_str().expect("visible ASCII")).collect();
    let list: List = Parser::new(&lines.join(", ")).parse().unwrap_or_else(|error| panic!("{lines:?}: {error}"));
    let member = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{lines:?}: an inner list") };
        let BareItem::String(name) = item.bare_item else { panic!("{lines:?}: not a String") };
        let mut parameters = item.params;
        let values = keys.map(|key| {
            let value = parameters.shift_remove(key)?;
            Some(value.as_integer().unwrap_or_else(|| panic!("{lines:?}: {key} is not an Integer")).into())
        });
        assert!(parameters.is_empty(), "{lines:?}: {parameters:?}");
        (String::from(name), values)
    };
    list.into_iter().map(member).collect()
}

/// Reads `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
pub(crate) fn legacy(headers: &HeaderMap) -> Option<[u64; 3]> {
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let values = names.map(|name| number(headers, name));
    assert!(values.iter().all(Option::is_some) || values.iter().all(Option::is_none), "all or none: {values:?}");
    let [Some(limit), Some(remaining), Some(reset)] = values else { return None };
    Some([limit, remaining, reset])
}

/// Reads `Retry-After` in seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    number(headers, "retry-after")
}

/// Whether any rate limit field or `Retry-After` is present.
pub(crate) fn has_fields(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().contains("ratelimit") || name == "retry-after")
}

/// Reads a field of one line that holds only digits.
fn number(headers: &HeaderMap, field: &str) -> Option<u64> {
    let lines: Vec<_> = headers.get_all(field).iter().collect();
    let [line] = lines[..] else {
        assert_eq!(lines.len(), 0, "{field} is repeated");
        return None;
    };
    assert!(line.as_bytes().iter().all(u8::is_ascii_digit), "{field}: {line:?} is not a number");
    Some(line.to_str().expect("digits").parse().expect("a number"))
}
