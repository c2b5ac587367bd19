//! The retry policy: reading hints from responses, bounds against hostile servers, and clients on real sockets in
//! HTTP/1.1, HTTP/2 and gRPC.
//!
//! Waits run in tokio's paused time. Tests on sockets do not wait.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::retry::gate::GateSignal;
use tower_ratelimit::retry::{GrpcHint, HttpHint, ReadRetryHint, RetryAfter, RetryHint};
use tower_ratelimit::{
    BoxLimiter, FixedWindow, Gcra, Limiter, Quota, RateLimitLayer, SlidingLog, TokenBucket, TokioClock,
};

use crate::support::{memory, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn read(method: Method, status: u16, fields: &[(&str, &str)]) -> RetryHint {
    let request = Request::builder().method(method).body(()).expect("a request");
    HttpHint.read(&request, Ok::<_, &Infallible>(&answer(status, fields)))
}

fn answer(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let response = fields.iter().fold(Response::builder().status(status), |response, (name, value)| {
        // As bytes: not every value is text.
        response.header(*name, value.as_bytes())
    });
    response.body(()).expect("a response")
}

fn date(from_now: i64) -> String {
    let (span, now) = (Duration::from_secs(from_now.unsigned_abs()), SystemTime::now());
    httpdate::fmt_http_date(if from_now < 0 { now - span } else { now + span })
}

#[test]
fn retry_after_field_is_read_as_seconds_and_as_date() {
    let hint = |value: &str| read(Method::GET, 429, &[("retry-after", value)]);
    assert_eq!(hint("120"), RetryHint::After(120 * SECOND));
    assert_eq!(hint("0"), RetryHint::After(Duration::ZERO));
    let RetryHint::After(wait) = hint(&date(100)) else { panic!("a date") };
    assert!((98 * SECOND..=100 * SECOND).contains(&wait), "{wait:?}");
    assert_eq!(hint(&date(-100)), RetryHint::Backoff, "a past date states no wait");
    // All three forms of a date (RFC 9110, section 5.6.7).
    for form in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
        assert_eq!(hint(form), RetryHint::Backoff, "{form}");
        let fields = [("retry-after", form), ("date", "Sun, 06 Nov 1994 08:49:07 GMT")];
        assert_eq!(read(Method::GET, 429, &fields), RetryHint::After(30 * SECOND), "relative to the `Date` field");
    }
}

#[test]
fn rate_limit_field_is_read_when_nothing_remains() {
    let hint = |value: &str| read(Method::GET, 429, &[("ratelimit", value)]);
    assert_eq!(hint(r#""default";r=0;t=30"#), RetryHint::After(30 * SECOND));
    assert_eq!(hint(r#""a";r=0;t=3, "b";r=5;t=70, c;r=0;t=9;pk=:YQ==:"#), RetryHint::After(9 * SECOND));
    assert_eq!(hint(r#""default";r=0"#), RetryHint::Backoff);
    assert_eq!(hint(r#""default";r=7;t=30"#), RetryHint::Backoff);
    let lines = [("ratelimit", r#""a";r=0;t=3"#), ("ratelimit", r#""b";r=0;t=8"#)];
    assert_eq!(read(Method::GET, 429, &lines), RetryHint::After(8 * SECOND), "several lines are one list");
    // Drafts before the eighth one: a line for each of two limiters.
    let drafts = [("ratelimit", "limit=9, remaining=0, reset=50"), ("ratelimit", "limit=99, remaining=98, reset=5")];
    assert_eq!(read(Method::GET, 429, &drafts), RetryHint::After(50 * SECOND), "the exhausted limit is the first one");
    let mixed = [("ratelimit", "limit=9, remaining=0, reset=50"), ("ratelimit", r#""b";r=1;t=8"#)];
    assert_eq!(read(Method::GET, 429, &mixed), RetryHint::After(50 * SECOND), "each line has its own spelling");
    let both = [("ratelimit", r#""a";r=0;t=3"#), ("retry-after", "4")];
    assert_eq!(read(Method::GET, 429, &both), RetryHint::After(4 * SECOND), "`Retry-After` takes precedence");
    let broken = [("ratelimit", r#""a";r=0;t=3"#), ("retry-after", "soon")];
    assert_eq!(read(Method::GET, 429, &broken), RetryHint::After(3 * SECOND), "an invalid `Retry-After` is skipped");
}

#[test]
fn only_retryable_requests_are_retried() {
    assert_eq!(read(Method::POST, 429, &[]), RetryHint::Backoff, "a denied request was not processed");
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        assert_eq!(read(method.clone(), 503, &[("retry-after", "2")]), RetryHint::After(2 * SECOND));
        assert_eq!(read(method, 503, &[]), RetryHint::None, "no wait is given");
    }
    assert_eq!(
        read(Method::POST, 503, &[("retry-after", "2")]),
        RetryHint::None,
        "the request may have been processed"
    );
    // As GitHub rejects.
    assert_eq!(read(Method::POST, 403, &[("retry-after", "2")]), RetryHint::After(2 * SECOND));
    let exhausted = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
    assert_eq!(read(Method::POST, 403, &exhausted), RetryHint::After(9 * SECOND));
    assert_eq!(read(Method::POST, 403, &exhausted[..1]), RetryHint::Backoff);
    assert_eq!(read(Method::POST, 403, &[("x-ratelimit-remaining", "1")]), RetryHint::None, "no permission");
    for status in [200, 301, 400, 500, 502, 504] {
        assert_eq!(read(Method::GET, status, &[("retry-after", "2")]), RetryHint::None, "{status}");
    }
    let request = Request::new(());
    assert_eq!(HttpHint.read(&request, Err::<&Response<()>, _>(&"broken")), RetryHint::None);
}

/// Values that a hostile or broken server may send.
const HOSTILE: [&str; 18] = [
    "1000000000000000000",
    "18446744073709551616",
    "99999999999999999999999999999999999999999999",
    "-1",
    "-1000000000000000000",
    "1e18",
    "0x10",
    "1.5",
    "",
    " ",
    "soon",
    "١٢",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "Mon, 99 Foo 0000 99:99:99 GMT",
    "Sun, 06 Nov 1994 08:49:37 +0100",
    "5, 10",
    "\u{0}",
];

fn hostile_answers() -> Vec<Response<()>> {
    let numbers = ["-1", "1000000000000000000", "999999999999999", "-999999999999999", "1.5", ":YQ==:", "?1", "\"1\""];
    let limits = numbers.iter().map(|number| format!("\"a\";r=0;t={number}"));
    let texts = ["\"a;r=0", "((((", ";;;", "\"a\";r=0;t", "(\"a\" \"b\");r=0;t=1", "\u{ff}\u{fe}"].map(String::from);
    let limits = limits.chain(texts).map(|value| ("ratelimit", value));
    let waits = HOSTILE.iter().filter(|value| !value.contains('\0')).map(|value| ("retry-after", (*value).to_owned()));
    let answers = limits.chain(waits).flat_map(|(name, value)| {
        [429, 503].map(|status| answer(status, &[(name, &value), ("date", "Thu, 01 Jan 1970 00:00:00 GMT")]))
    });
    let statuses = ["8", "14", "-1", "x", ""].map(|status| {
        let details = "//////////////////////8"; // no google.rpc.Status
        [
            answer(200, &[("grpc-status", status), ("grpc-status-details-bin", details)]),
            answer(200, &[("grpc-status", status), ("grpc-status-details-bin", "not base64!")]),
            answer(200, &[("grpc-status", status), ("grpc-retry-pushback-ms", "2147483648")]),
            answer(200, &[("grpc-status", status), ("grpc-retry-pushback-ms", "2147483647")]),
            answer(200, &[("grpc-status", status), ("grpc-retry-pushback-ms", "-2147483649")]),
            answer(200, &[("grpc-status", status), ("grpc-retry-pushback-ms", "soon")]),
        ]
    });
    answers.chain(statuses.into_iter().flatten()).collect()
}

/// The numbers of requests and the waits are bounded for every response and configuration, and the last response is
/// returned.
#[tokio::test(start_paused = true)]
async fn hostile_responses_stay_within_the_bounds_of_the_client() {
    let long = RetryAfter::new().max_retries(u32::MAX).jitter(Duration::ZERO).initial_backoff(Duration::MAX);
    let unbounded = RetryAfter::new().max_wait(Duration::MAX).max_total_wait(Duration::MAX).jitter(Duration::MAX);
    for answer in hostile_answers() {
        let (requests, spent) = retry_against(RetryAfter::new(), &answer).await;
        assert!(requests <= 4 && spent <= 120 * SECOND, "{requests} requests in {spent:?}: {answer:?}");
        let (requests, spent) = retry_against(long.clone(), &answer).await;
        assert!(requests <= 12_001 && spent <= 120 * SECOND, "{requests} requests in {spent:?}: {answer:?}");
        // Without bounds on waits, only the number of retries is bounded, and nothing overflows.
        let mut policy = unbounded.clone();
        for _ in 0..5 {
            let hint = HttpHint.read(&Request::new(()), Ok::<_, &Infallible>(&answer));
            let _ = policy.next_delay(hint);
        }
        assert_eq!(policy.next_delay(RetryHint::After(Duration::MAX)).filter(|wait| *wait < Duration::MAX), None);
    }
}

/// Sends a request to a server that always returns `answer`. Returns the number of requests and the time.
async fn retry_against(policy: RetryAfter, answer: &Response<()>) -> (usize, Duration) {
    let requests = Arc::new(AtomicUsize::new(0));
    let (counted, always) = (Arc::clone(&requests), answer.clone());
    let server = service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(always.clone()))
    });
    let began = Instant::now();
    let Ok(last) = ServiceBuilder::new().retry(policy).service(server).oneshot(Request::new(())).await;
    assert_eq!(last.status(), answer.status(), "the last response is returned");
    (requests.load(Ordering::Relaxed), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn retry_is_not_before_retry_after() {
    let response = answer(429, &[("retry-after", "7")]);
    for _ in 0..50 {
        let (requests, spent) = retry_against(RetryAfter::new().max_retries(2), &response).await;
        assert_eq!(requests, 3);
        // Tokio's timer rounds up to milliseconds.
        assert!((14 * SECOND..=Duration::from_millis(14_502)).contains(&spent), "{spent:?}");
    }
    let (_, exact) = retry_against(RetryAfter::new().max_retries(2).jitter(Duration::ZERO), &response).await;
    assert_eq!(exact, 14 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn response_is_returned_when_the_wait_exceeds_the_bounds() {
    let (requests, spent) = retry_against(RetryAfter::new(), &answer(429, &[("retry-after", "61")])).await;
    assert_eq!((requests, spent), (1, Duration::ZERO), "an earlier retry would be denied");
    let long = RetryAfter::new().max_wait(3600 * SECOND).max_total_wait(100 * SECOND).jitter(Duration::ZERO);
    let (requests, spent) = retry_against(long, &answer(429, &[("retry-after", "61")])).await;
    assert_eq!((requests, spent), (2, 61 * SECOND), "a second wait exceeds the total");
}

#[test]
fn jitter_stays_within_the_maximum_wait() {
    let longest = RetryAfter::new().max_wait(7 * SECOND).jitter(3600 * SECOND);
    for wait in [0, 1, 5, 7] {
        for _ in 0..50 {
            let delay = longest.clone().next_delay(RetryHint::After(wait * SECOND)).expect("a wait");
            assert!((wait * SECOND..=7 * SECOND).contains(&delay), "{delay:?} of {wait}");
        }
    }
}

#[test]
fn backoff_doubles_when_no_wait_is_given() {
    for _ in 0..100 {
        let mut policy = RetryAfter::new().max_retries(u32::MAX).max_total_wait(Duration::MAX).max_wait(20 * SECOND);
        for longest in [1, 2, 4, 8, 16, 20, 20, 20] {
            let wait = policy.next_delay(RetryHint::Backoff).expect("a wait");
            assert!((longest * SECOND / 2..=longest * SECOND).contains(&wait), "{wait:?} of {longest}");
        }
    }
    let mut policy = RetryAfter::new();
    assert_eq!(policy.next_delay(RetryHint::None), None);
}

/// `Retry` clones the policy for each request.
#[tokio::test(start_paused = true)]
async fn retries_are_counted_per_request() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = service_fn(move |_: Request<()>| {
        let denies = counted.fetch_add(1, Ordering::Relaxed) % 4 != 3;
        let answer = answer(if denies { 429 } else { 200 }, &[("retry-after", "1")]);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let mut client = ServiceBuilder::new().retry(RetryAfter::new()).service(server);
    for _ in 0..5 {
        let Ok(client) = client.ready().await;
        let Ok(answer) = client.call(Request::new(())).await;
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(requests.load(Ordering::Relaxed), 20);
}

/// The rows of the documented table: provider, remaining, time, example, and the wait in seconds.
fn providers() -> Vec<[&'static str; 5]> {
    let rows = include_str!("../../../src/retry/providers.md").lines().filter(|line| line.ends_with("> |"));
    let cells = |line: &'static str| {
        let cells: Vec<_> =
            line.split(" |").map(|cell| cell.trim_start_matches('|').trim().trim_matches('`')).collect();
        let [provider, remaining, time, unit, example, wait, source, ""] = cells[..] else { panic!("{line}") };
        assert!(["s", "ms"].contains(&unit) && source.starts_with("<https://"), "{line}");
        [provider, remaining, time, example, wait]
    };
    rows.map(cells).collect()
}

/// Each row of the table of providers, as a rejection and as the last response that was served.
#[test]
fn fields_of_each_provider_are_read() {
    let providers = providers();
    let names: std::collections::BTreeSet<_> = providers.iter().map(|[provider, ..]| provider).collect();
    println!("{} rows of {} providers and limits", providers.len(), names.len());
    assert!(providers.len() > 80);
    for row @ [_, remaining, time, example, wait] in providers {
        let wait = Duration::from_secs_f64(wait.parse().expect("seconds"));
        let date = ("date", "Tue, 14 Nov 2023 22:13:20 GMT");
        let mut fields = vec![date, (time, example)];
        assert_eq!(read(Method::POST, 429, &fields), RetryHint::After(wait), "{row:?}");
        let signal = |status, fields: &[_]| {
            let response = answer(status, fields);
            HttpHint.gate_signal(response.status(), response.headers())
        };
        assert_eq!(signal(429, &fields), GateSignal::Rejected(Some(wait)), "{row:?}");
        if remaining.is_empty() {
            let served = GateSignal::Served { remaining: None };
            let served = if time == "ratelimit" { GateSignal::ServedLast(wait) } else { served };
            assert_eq!(signal(200, &fields), served, "{row:?}");
            continue;
        }
        fields.push((remaining, "0"));
        assert_eq!(read(Method::GET, 429, &fields), RetryHint::After(wait), "{row:?}");
        assert_eq!(signal(429, &fields), GateSignal::Rejected(Some(wait)), "{row:?}");
        assert_eq!(signal(200, &fields), GateSignal::ServedLast(wait), "{row:?}");
        fields[2].1 = "7";
        assert_eq!(read(Method::GET, 429, &fields), RetryHint::Backoff, "{row:?}");
        assert_eq!(signal(200, &fields), GateSignal::Served { remaining: Some(7) }, "{row:?}");
    }
}

/// Writes a wait in one of the forms of servers: the field, its value, and the microseconds that the value states.
fn write_wait(form: usize, wait: u64, sent: u64) -> (&'static str, String, u64) {
    let (seconds, at) = (wait.div_ceil(1_000_000), sent * 1_000_000 + wait);
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(sent + seconds));
    let span = |wait: u64| {
        let (hours, minutes, micros) = (wait / 3_600_000_000, wait / 60_000_000 % 60, wait % 60_000_000);
        format!("{hours}h{minutes}m{}.{:06}s", micros / 1_000_000, micros % 1_000_000)
    };
    match form {
        0 => ("retry-after", seconds.to_string(), seconds * 1_000_000),
        1 => ("retry-after", format!("{}.{:06}", wait / 1_000_000, wait % 1_000_000), wait),
        2 => ("retry-after", date, seconds * 1_000_000),
        3 => ("x-ratelimit-reset", (sent + seconds).to_string(), seconds * 1_000_000),
        4 => ("x-ratelimit-reset", at.div_ceil(1_000).to_string(), wait.div_ceil(1_000) * 1_000),
        5 => ("x-ratelimit-reset", at.to_string(), wait),
        6 => ("x-ratelimit-reset", format!("{}.{:06}", at / 1_000_000, at % 1_000_000), wait),
        7 => ("retry-after-ms", wait.div_ceil(1_000).to_string(), wait.div_ceil(1_000) * 1_000),
        8 => ("x-ratelimit-reset-tokens", span(wait), wait),
        9 => ("x-ratelimit-reset-requests", format!("{}ms", wait.div_ceil(1_000)), wait.div_ceil(1_000) * 1_000),
        10 => ("ratelimit-reset", seconds.to_string(), seconds * 1_000_000),
        _ => ("ratelimit", format!("\"a\";r=0;t={seconds}"), seconds * 1_000_000),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// A wait in any form is read exactly, relative to the server's time. One beyond the bound of the client ends the
    /// retries, and never leads to a short one. A time that is past states no wait.
    #[test]
    fn waits_are_read_exactly_in_each_form(
        form in 0_usize..12, wait in 1_u64..400_000_000, sent in 1_100_000_000_u64..4_000_000_000,
        past in 0_u64..1_000_000, second in proptest::option::of(1_u64..400_000_000),
    ) {
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(sent));
        let (field, value, micros) = write_wait(form, wait, sent);
        let mut fields = vec![("date", date.as_str()), (field, value.as_str())];
        let other = second.map(|other| write_wait(form, other, sent));
        // The field stands twice.
        fields.extend(other.as_ref().map(|(field, value, _)| (*field, value.as_str())));
        let longest = Duration::from_micros(other.as_ref().map_or(micros, |(_, _, other)| micros.max(*other)));
        let hint = read(Method::GET, 429, &fields);
        proptest::prop_assert_eq!(hint, RetryHint::After(longest), "{:?}", fields);
        let delay = RetryAfter::new().next_delay(hint);
        proptest::prop_assert_eq!(delay.is_some(), longest <= 60 * SECOND);
        proptest::prop_assert!(delay.is_none_or(|delay| delay >= longest));
        let response = answer(429, &fields);
        let signal = HttpHint.gate_signal(response.status(), response.headers());
        proptest::prop_assert_eq!(signal, GateSignal::Rejected(Some(longest)), "{:?}", fields);

        if (2..=6).contains(&form) {
            let (field, value, _) = write_wait(form, 0, sent - past);
            let fields = [("date", date.as_str()), (field, value.as_str())];
            proptest::prop_assert_eq!(read(Method::GET, 429, &fields), RetryHint::Backoff, "{:?}", fields);
        }
    }
}

/// Sends `requests` through a client with the quota to a partner, over a network whose delay varies by up to `jitter`.
/// Returns the number of rejections.
async fn rejections(client: Quota, partner: BoxLimiter<()>, jitter: Duration, requests: u32) -> usize {
    let random = Arc::new(std::sync::Mutex::new(crate::random::Random::new(7)));
    let http = service_fn(move |_: Request<()>| {
        let (partner, random) = (partner.clone(), Arc::clone(&random));
        async move {
            let delay = jitter.mul_f64(random.lock().expect("no panic").share());
            tokio::time::sleep(Duration::from_millis(20) + delay).await;
            let is_allowed = partner.check(&(), 1).await?.is_allowed();
            Ok::<_, BoxError>(answer(if is_allowed { 200 } else { 429 }, &[]))
        }
    });
    let layer = RateLimitLayer::new(Global, memory(Gcra::new(client).strict(), TokioClock::new()));
    let client = ServiceBuilder::new().layer(layer.max_wait(3600 * SECOND).responder(RejectWithError)).service(http);
    let calls = (0..requests).map(|_| spawn(client.clone().oneshot(Request::new(())))).collect::<Vec<_>>();
    let mut rejected = 0;
    for call in calls {
        rejected += usize::from(call.await.expect("a task").expect("its start").status() == 429);
    }
    rejected
}

/// The recipe for outbound clients: the provider's quota, with `limit` times the jitter added to its period.
#[tokio::test(start_paused = true)]
async fn outbound_recipe_is_never_rejected_by_four_kinds_of_partners() {
    for (limit, period, jitter) in [(10, 1_000, 8), (50, 1_000, 8), (3, 700, 20), (100, 60_000, 40), (1, 100, 3)] {
        let [period, jitter] = [period, jitter].map(Duration::from_millis);
        let quota = Quota::new(limit, period);
        // Two milliseconds for the timers of both sides.
        let margin = (jitter + Duration::from_millis(2)) * u32::try_from(limit).expect("small");
        let client = Quota::new(limit, period + margin);
        let partners = [
            memory(Gcra::new(quota).strict(), TokioClock::new()),
            memory(FixedWindow::new(quota), TokioClock::new()),
            memory(SlidingLog::new(quota), TokioClock::new()),
            memory(TokenBucket::new(quota), TokioClock::new()),
        ];
        for (partner, name) in partners.into_iter().zip(["spaced", "windows", "a log", "a bucket"]) {
            let rejected = rejections(client, partner, jitter, 200).await;
            assert_eq!(rejected, 0, "{name}: {limit} in {period:?}, {jitter:?}");
        }
        let spaced = memory(Gcra::new(quota).strict(), TokioClock::new());
        let without = rejections(quota, spaced, jitter, 200).await;
        assert!(without > 20, "the margin is needed: {without} of 200");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Any bytes are read without a panic, and no wait exceeds its bounds.
    #[test]
    fn reading_any_field_keeps_the_wait_bounded(
        status in proptest::sample::select(vec![200_u16, 429, 503]),
        fields in proptest::collection::vec((0..FIELDS.len(), VALUE), 0..6),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (FIELDS[*name], value.as_str())).collect();
        let hint = read(Method::GET, status, &fields);
        if let Some(wait) = RetryAfter::new().next_delay(hint) {
            assert!(wait <= 61 * SECOND, "{wait:?}");
        }
    }
}

const FIELDS: [&str; 6] =
    ["retry-after", "ratelimit", "date", "grpc-status", "grpc-status-details-bin", "grpc-retry-pushback-ms"];

/// Field values, often similar to numbers, dates, lists and base64.
const VALUE: &str = "([0-9]{1,25}|8|14|-[0-9]{1,12}|\"[a-z]\";r=0;t=-?[0-9]{1,16}|[A-Za-z0-9+/]{0,60}={0,2}|\\PC{0,30}|\
                     (Mon|Sun), [0-9]{2} (Jan|Dec) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT)";

mod grpc {
    use tonic::metadata::MetadataMap;
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, RetryInfo, StatusExt};

    use super::*;

    /// Returns a status with a `RetryInfo` of any bytes.
    fn with_info(code: Code, value: &[u8]) -> Status {
        let any = [field(1, RetryInfo::TYPE_URL.as_bytes()), field(2, value)].concat();
        Status::with_details(code, "no", field(3, &any).into())
    }

    /// Encodes a protobuf field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        field.extend(bytes);
        field
    }

    /// Encodes a `RetryInfo` with a `google.protobuf.Duration`, as varints.
    fn delay(seconds: i64, nanos: i32) -> Vec<u8> {
        let mut duration = vec![0x08];
        prost::encoding::encode_varint(seconds.cast_unsigned(), &mut duration);
        duration.push(0x10);
        prost::encoding::encode_varint(i64::from(nanos).cast_unsigned(), &mut duration);
        field(1, &duration)
    }

    /// Reads the hint from a status and from the header fields of a response, which must be equal.
    fn read_both(status: &Status) -> RetryHint {
        let hint = GrpcHint.read(status);
        let response: Response<()> = status.clone().into_http();
        assert_eq!(HttpHint.read(&Request::new(()), Ok::<_, &Infallible>(&response)), hint, "{status:?}");
        hint
    }

    #[test]
    fn retry_info_is_read_from_status_and_fields() {
        let wait = Duration::new(3, 250_000_000);
        let status =
            Status::with_error_details(Code::ResourceExhausted, "no", ErrorDetails::with_retry_info(Some(wait)));
        assert_eq!(read_both(&status), RetryHint::After(wait));
        assert_eq!(read_both(&with_info(Code::Unavailable, &delay(2, 5))), RetryHint::After(Duration::new(2, 5)));
        assert_eq!(read_both(&with_info(Code::Unavailable, &[])), RetryHint::Backoff);
        for code in [Code::Ok, Code::Internal, Code::PermissionDenied, Code::Unauthenticated] {
            assert_eq!(read_both(&with_info(code, &delay(2, 5))), RetryHint::None, "{code:?}");
        }
        assert_eq!(read_both(&Status::new(Code::ResourceExhausted, "no")), RetryHint::None, "no wait is given");
        assert_eq!(ReadRetryHint::read(&GrpcHint, &(), Ok::<_, &Status>(&())), RetryHint::None);
    }

    #[test]
    fn hostile_retry_info_does_not_overflow() {
        let waits = [
            (-1, 0, Duration::ZERO),
            (0, -1, Duration::ZERO),
            (i64::MIN, i32::MIN, Duration::ZERO),
            (5, -1_000_000_000, Duration::from_secs(4)),
            (1_000_000_000_000_000_000, 0, Duration::from_secs(1_000_000_000_000_000_000)),
            (i64::MAX, i32::MAX, Duration::new(i64::MAX.cast_unsigned() + 2, 147_483_647)),
        ];
        for (seconds, nanos, wait) in waits {
            let hint = read_both(&with_info(Code::ResourceExhausted, &delay(seconds, nanos)));
            assert_eq!(hint, RetryHint::After(wait), "{seconds} s, {nanos} ns");
        }
        for garbage in [vec![0xff; 40], vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], vec![0x0a]] {
            assert_eq!(read_both(&with_info(Code::ResourceExhausted, &garbage)), RetryHint::None);
            let status = Status::with_details(Code::ResourceExhausted, "no", garbage.into());
            assert_eq!(read_both(&status), RetryHint::None);
        }
        for broken in ["!", "a", "====", "\u{e4}"] {
            let response = answer(200, &[("grpc-status", "8"), ("grpc-status-details-bin", broken)]);
            assert_eq!(HttpHint.read(&Request::new(()), Ok::<_, &Infallible>(&response)), RetryHint::None, "{broken}");
        }
    }

    #[test]
    fn pushback_takes_precedence_and_may_forbid_retries() {
        for (pushback, hint) in [
            ("1500", RetryHint::After(Duration::from_millis(1_500))),
            ("0", RetryHint::After(Duration::ZERO)),
            ("-1", RetryHint::None),
            ("2147483648", RetryHint::None),
            ("soon", RetryHint::None),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-retry-pushback-ms", pushback.parse().expect("ASCII"));
            let details = with_info(Code::ResourceExhausted, &delay(9, 0)).details().to_vec();
            let status = Status::with_details_and_metadata(Code::ResourceExhausted, "no", details.into(), metadata);
            assert_eq!(read_both(&status), hint, "{pushback}");
        }
    }
}

/// hyper's client against hostile servers on sockets, without long waits.
#[tokio::test]
async fn hyper_client_is_bounded_against_hostile_servers() {
    use axum::routing::get;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;

    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let app = axum::Router::new().route(
        "/{number}",
        get(async move |axum::extract::Path(number): axum::extract::Path<usize>| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer(429, &[("retry-after", HOSTILE[number])]).map(|()| axum::body::Body::from("no"))
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    spawn(async move { axum::serve(listener, app).await });

    let sendable = HOSTILE.iter().enumerate().filter(|(_, value)| !value.contains('\0'));
    let numbers: Vec<_> = sendable.map(|(number, _)| number).collect();
    for http2 in [false, true] {
        let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http::<Full<Bytes>>();
        let policy = RetryAfter::new().max_wait(SECOND).jitter(SECOND / 100).initial_backoff(SECOND / 100);
        let client = ServiceBuilder::new().retry(policy).service(client);
        for &number in &numbers {
            let request = Request::get(format!("http://{address}/{number}")).body(Full::default()).expect("a request");
            let before = requests.load(Ordering::Relaxed);
            let answer = tokio::time::timeout(20 * SECOND, client.clone().oneshot(request)).await;
            let answer = answer.expect("no time-out").expect("an answer");
            assert_eq!(answer.status(), 429);
            assert!(requests.load(Ordering::Relaxed) - before <= 4, "{:?}", HOSTILE[number]);
        }
    }
}

/// Reading the parts equals reading the whole response. Without a method, a 503 is not retried.
#[test]
fn reading_parts_equals_reading_the_whole_response() {
    let plain = [200, 429, 503].map(|status| answer(status, &[("retry-after", "2")]));
    for answer in plain.into_iter().chain(hostile_answers()) {
        for method in [Method::GET, Method::POST, Method::PUT] {
            let request = Request::builder().method(method.clone()).body(()).expect("a request");
            let whole = HttpHint.read(&request, Ok::<_, &Infallible>(&answer));
            let parts = HttpHint.read_response(Some(&method), answer.status(), answer.headers());
            assert_eq!(parts, whole, "{method}: {answer:?}");
            let expected = if answer.status() == 503 { RetryHint::None } else { whole };
            assert_eq!(HttpHint.read_response(None, answer.status(), answer.headers()), expected, "{answer:?}");
        }
    }
}

/// The request is not `Clone`: a request that the function clones is sent again, any other is sent once.
#[tokio::test(start_paused = true)]
async fn clone_function_decides_what_is_sent_again() {
    struct NotClone(u32);

    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = service_fn(move |_: NotClone| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(()))
    });
    let policy = RetryAfter::new()
        .clone_with(|request: &NotClone| (request.0 > 0).then_some(NotClone(request.0)))
        .with_reader(|_: &NotClone, _: Result<&(), &Infallible>| RetryHint::Backoff);
    let client = ServiceBuilder::new().retry(policy).service(server);
    for (number, times) in [(0, 1), (1, 4)] {
        let Ok(()) = client.clone().oneshot(NotClone(number)).await;
        assert_eq!(sent.swap(0, Ordering::Relaxed), times, "{number}");
    }
}

/// reqwest's client on a socket retries a request with a body, and returns the last response.
#[tokio::test]
async fn reqwest_client_retries_a_request_with_a_body() {
    use axum::routing::post;

    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let handler = async move |body: String| {
        let denies = counted.fetch_add(1, Ordering::Relaxed) < 2;
        let (status, text) = if denies { (429, "denied".to_owned()) } else { (200, format!("got {body}")) };
        answer(status, &[("retry-after", "0")]).map(|()| axum::body::Body::from(text))
    };
    let app = axum::Router::new().route("/", post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    spawn(async move { axum::serve(listener, app).await });

    let policy = RetryAfter::new()
        .with_reader(|request: &reqwest::Request, answer: Result<&reqwest::Response, &reqwest::Error>| {
            let Ok(response) = answer else { return RetryHint::None };
            HttpHint.read_response(Some(request.method()), response.status(), response.headers())
        })
        .clone_with(reqwest::Request::try_clone)
        .jitter(Duration::ZERO);
    let client = reqwest::Client::builder().no_proxy().timeout(20 * SECOND).build().expect("a client");
    let request = client.post(&url).body("a body").build().expect("a request");
    let mut client = ServiceBuilder::new().retry(policy).service(client);
    let answer = client.ready().await.expect("ready").call(request).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), requests.load(Ordering::Relaxed)), (200, 3));
    assert_eq!(answer.text().await.expect("a body"), "got a body");
}
