use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};
use tonic_types::{RetryInfo, pb};

use super::hint::{ReadRetryHint, RetryHint};
use super::times::duration;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Reads the status of gRPC calls.
///
/// After `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, the client retries if the status has a `grpc-retry-pushback-ms` or a
/// `google.rpc.RetryInfo`. A negative or malformed pushback forbids the retry. All other statuses are final.
///
/// The requests of a tonic client are not `Clone`, but its messages are: wrap the call in a service.
///
#[cfg_attr(not(doctest), doc = include_str!("tonic.md"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcHint;

impl GrpcHint {
    /// Reads a status, for custom retry loops: see [`RetryAfter::next_delay`](super::RetryAfter::next_delay).
    pub fn read(self, status: &Status) -> RetryHint {
        let pushback = status.metadata().get(PUSHBACK).map(MetadataValue::as_bytes);
        hint(status.code(), pushback, || status.details().to_vec())
    }
}

impl<Request, Response> ReadRetryHint<Request, Response, Status> for GrpcHint {
    fn read(&self, _request: &Request, result: Result<&Response, &Status>) -> RetryHint {
        result.err().map_or(RetryHint::None, |status| GrpcHint::read(*self, status))
    }
}

/// Reads the headers of a trailers-only response.
pub(super) fn hint_from_headers(headers: &HeaderMap) -> RetryHint {
    let Some(status) = headers.get(STATUS) else { return RetryHint::None };
    let pushback = headers.get(PUSHBACK).map(HeaderValue::as_bytes);
    hint(Code::from_bytes(status.as_bytes()), pushback, || details(headers))
}

/// Does not use `Status::from_header_map`, which panics if the value is not base64.
fn details(headers: &HeaderMap) -> Vec<u8> {
    let only = headers.get(DETAILS).map(|value| (DETAILS, value.clone()));
    let metadata = MetadataMap::from_headers(only.into_iter().collect());
    let details = metadata.get_bin(DETAILS.as_str()).and_then(|value| value.to_bytes().ok());
    details.map(Vec::from).unwrap_or_default()
}

fn hint(code: Code, pushback: Option<&[u8]>, details: impl FnOnce() -> Vec<u8>) -> RetryHint {
    if !matches!(code, Code::ResourceExhausted | Code::Unavailable) {
        return RetryHint::None;
    }
    match pushback {
        Some(pushback) => {
            let millis = std::str::from_utf8(pushback).ok().and_then(|text| text.parse::<i32>().ok());
            let wait = millis.and_then(|millis| u64::try_from(millis).ok());
            wait.map_or(RetryHint::None, |millis| RetryHint::After(Duration::from_millis(millis)))
        }
        None => retry_info(&details()),
    }
}

/// Reads the `RetryInfo` in a `google.rpc.Status`.
///
/// Converts the delay here, because the conversion of prost's `Duration` overflows for the smallest number of seconds.
fn retry_info(details: &[u8]) -> RetryHint {
    let Ok(status) = pb::Status::decode(details) else { return RetryHint::None };
    let info = status.details.iter().find(|any| any.type_url == RetryInfo::TYPE_URL);
    let Some(Ok(info)) = info.map(|any| pb::RetryInfo::decode(any.value.as_slice())) else { return RetryHint::None };
    match info.retry_delay {
        None => RetryHint::Backoff,
        // A negative delay is zero.
        Some(delay) => {
            let nanos = i128::from(delay.seconds) * 1_000_000_000 + i128::from(delay.nanos);
            RetryHint::After(duration(u128::try_from(nanos).unwrap_or(0)))
        }
    }
}
