//! The response fields that the client policy reads: each line of the input is a field.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tower_ratelimit::retry::{HttpHint, RetryAfter, RetryHint};

/// The first byte of a line selects the field.
const FIELDS: [HeaderName; 6] = [
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("date"),
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("grpc-retry-pushback-ms"),
];

const MAX_WAIT: Duration = Duration::from_secs(60);
const JITTER: Duration = Duration::from_millis(250);

/// Panics if a law of the policy is violated.
pub(crate) fn check(input: &[u8]) {
    let mut fields = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n') {
        if let Some((&field, value)) = line.split_first()
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            fields.append(FIELDS[usize::from(field) % FIELDS.len()].clone(), value);
        }
    }
    let read = |method, status| HttpHint.read_response(Some(&method), status, &fields);

    let too_many = read(Method::POST, StatusCode::TOO_MANY_REQUESTS);
    assert_ne!(too_many, RetryHint::None, "a rejected request may be sent again");
    let unavailable = read(Method::POST, StatusCode::SERVICE_UNAVAILABLE);
    let success = read(Method::GET, StatusCode::OK);
    if !fields.contains_key("grpc-status") {
        assert_eq!(unavailable, RetryHint::None, "the server may have processed the request");
        assert_eq!(success, RetryHint::None, "a success is final");
    }
    for hint in [too_many, unavailable, success, read(Method::GET, StatusCode::SERVICE_UNAVAILABLE)] {
        let wait = RetryAfter::new().next_delay(hint);
        match hint {
            RetryHint::None => assert_eq!(wait, None),
            RetryHint::After(after) => {
                assert!(wait.is_none_or(|wait| wait >= after), "a retry never comes early");
                assert_eq!(wait.is_none(), after > MAX_WAIT, "{after:?}");
            }
            RetryHint::Backoff => assert!(wait.is_some()),
        }
        assert!(wait.is_none_or(|wait| wait <= MAX_WAIT + JITTER), "{wait:?}");
    }
}
