//! The header `grpc-timeout`.

use std::time::Duration;

use http::HeaderMap;

/// Returns the time after which the client of a gRPC call gives up, or `None` if the header is absent or malformed.
///
/// The value is up to eight digits and a unit (gRPC over HTTP/2, "Requests").
pub(super) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let number = digits
        .iter()
        .try_fold(0_u64, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 60 * 60)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(value: &[u8]) -> Option<Duration> {
        let value = HeaderValue::from_bytes(value).expect("a header value");
        grpc_timeout(&HeaderMap::from_iter([("grpc-timeout".parse().expect("a name"), value)]))
    }

    #[test]
    fn grpc_timeout_reads_each_unit() {
        let units = [(b"2H", 7_200_000_000_000), (b"2M", 120_000_000_000), (b"2S", 2_000_000_000), (b"2m", 2_000_000)];
        for (value, nanos) in units.into_iter().chain([(b"2u", 2_000), (b"2n", 2)]) {
            assert_eq!(read(value), Some(Duration::from_nanos(nanos)), "{value:?}");
        }
        assert_eq!(read(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn grpc_timeout_ignores_malformed_values() {
        for value in [&b""[..], b"S", b"1", b"1s", b"-1S", b"+1S", b" 1S", b"1 S", b"1.5S", b"123456789S", b"1\xffS"] {
            assert_eq!(read(value), None, "{value:?}");
        }
    }
}
