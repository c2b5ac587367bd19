//! Clients that come back when they are told to: what is read off answers, what bounds hold against hostile ones, and
//! what it is like on real sockets, in HTTP/1.1, HTTP/2 and gRPC.
//!
//! Waits are waited for in tokio's paused time, but for those on sockets, where none are.

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
use tower_ratelimit::retry::{GrpcHint, HttpHint, ReadRetryHint, RetryAfter, RetryHint};
use tower_ratelimit::{AcquireOptions, Gcra, Memory, Quota, RateLimitLayer, SlidingLog, TokioClock};

const SECOND: Duration = Duration::from_secs(1);

fn read(method: Method, status: u16, fields: &[(&str, &str)]) -> RetryHint {
    let request = Request::builder().method(method).body(()).expect("a request");
    HttpHint.read(&request, Ok::<_, &Infallible>(&answer(status, fields)))
}

fn answer(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let response = fields.iter().fold(Response::builder().status(status), |response, (name, value)| {
        // Bytes, as on the wire: not all are text.
        response.header(*name, value.as_bytes())
    });
    response.body(()).expect("a response")
}

fn date(from_now: i64) -> String {
    let (span, now) = (Duration::from_secs(from_now.unsigned_abs()), SystemTime::now());
    httpdate::fmt_http_date(if from_now < 0 { now - span } else { now + span })
}

#[test]
fn retry_after_is_read_in_both_forms() {
    let told = |value: &str| read(Method::GET, 429, &[("retry-after", value)]);
    assert_eq!(told("120"), RetryHint::After(120 * SECOND));
    assert_eq!(told("0"), RetryHint::After(Duration::ZERO));
    let RetryHint::After(wait) = told(&date(100)) else { panic!("a date") };
    assert!((98 * SECOND..=100 * SECOND).contains(&wait), "{wait:?}");
    assert_eq!(told(&date(-100)), RetryHint::After(Duration::ZERO), "the past is over");
    // All three forms of a date (RFC 9110, section 5.6.7).
    for form in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
        assert_eq!(told(form), RetryHint::After(Duration::ZERO), "{form}");
        let fields = [("retry-after", form), ("date", "Sun, 06 Nov 1994 08:49:07 GMT")];
        assert_eq!(read(Method::GET, 429, &fields), RetryHint::After(30 * SECOND), "by the server's own clock");
    }
}

#[test]
fn rate_limit_is_read_where_nothing_remains() {
    let told = |value: &str| read(Method::GET, 429, &[("ratelimit", value)]);
    assert_eq!(told(r#""default";r=0;t=30"#), RetryHint::After(30 * SECOND));
    assert_eq!(told(r#""a";r=0;t=3, "b";r=5;t=70, c;r=0;t=9;pk=:YQ==:"#), RetryHint::After(9 * SECOND));
    assert_eq!(told(r#""default";r=0"#), RetryHint::Backoff);
    assert_eq!(told(r#""default";r=7;t=30"#), RetryHint::Backoff);
    let lines = [("ratelimit", r#""a";r=0;t=3"#), ("ratelimit", r#""b";r=0;t=8"#)];
    assert_eq!(read(Method::GET, 429, &lines), RetryHint::After(8 * SECOND), "several lines are one list");
    let both = [("ratelimit", r#""a";r=0;t=3"#), ("retry-after", "4")];
    assert_eq!(read(Method::GET, 429, &both), RetryHint::After(4 * SECOND), "`Retry-After` takes precedence");
    let broken = [("ratelimit", r#""a";r=0;t=3"#), ("retry-after", "soon")];
    assert_eq!(read(Method::GET, 429, &broken), RetryHint::After(3 * SECOND), "unless it can't be read");
}

#[test]
fn only_what_may_be_asked_again_is() {
    assert_eq!(read(Method::POST, 429, &[]), RetryHint::Backoff, "a refused request has not been acted upon");
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        assert_eq!(read(method.clone(), 503, &[("retry-after", "2")]), RetryHint::After(2 * SECOND));
        assert_eq!(read(method, 503, &[]), RetryHint::None, "it does not say when");
    }
    assert_eq!(read(Method::POST, 503, &[("retry-after", "2")]), RetryHint::None, "it may have been acted upon");
    for status in [200, 301, 400, 500, 502, 504] {
        assert_eq!(read(Method::GET, status, &[("retry-after", "2")]), RetryHint::None, "{status}");
    }
    let request = Request::new(());
    assert_eq!(HttpHint.read(&request, Err::<&Response<()>, _>(&"broken")), RetryHint::None);
}

/// What a hostile or a broken server may send.
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

/// Whatever a server says, and however the client is set: so many requests and so long a wait, and the answer is handed
/// on.
#[tokio::test(start_paused = true)]
async fn no_answer_makes_a_client_wait_or_ask_beyond_its_bounds() {
    let patient = RetryAfter::new().max_retries(u32::MAX).jitter(Duration::ZERO).initial_backoff(Duration::MAX);
    let endless = RetryAfter::new().max_wait(Duration::MAX).max_total_wait(Duration::MAX).jitter(Duration::MAX);
    for answer in hostile_answers() {
        let (asked, spent) = ask_for(RetryAfter::new(), &answer).await;
        assert!(asked <= 4 && spent <= 120 * SECOND, "{asked} times in {spent:?}: {answer:?}");
        let (asked, spent) = ask_for(patient.clone(), &answer).await;
        assert!(asked <= 12_001 && spent <= 120 * SECOND, "{asked} times in {spent:?}: {answer:?}");
        // Whoever sets no bounds has none but the number of tries; nothing overflows.
        let mut policy = endless.clone();
        for _ in 0..5 {
            let told = HttpHint.read(&Request::new(()), Ok::<_, &Infallible>(&answer));
            let _ = policy.next_delay(told);
        }
        assert_eq!(policy.next_delay(RetryHint::After(Duration::MAX)).filter(|wait| *wait < Duration::MAX), None);
    }
}

/// How often it asks a server that always answers so, and in what time.
async fn ask_for(policy: RetryAfter, answer: &Response<()>) -> (usize, Duration) {
    let asked = Arc::new(AtomicUsize::new(0));
    let (counted, always) = (Arc::clone(&asked), answer.clone());
    let server = service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok::<_, Infallible>(always.clone()))
    });
    let began = Instant::now();
    let Ok(last) = ServiceBuilder::new().retry(policy).service(server).oneshot(Request::new(())).await;
    assert_eq!(last.status(), answer.status(), "the last answer is handed on");
    (asked.load(Ordering::Relaxed), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn it_comes_when_it_is_told_and_not_sooner() {
    let told = answer(429, &[("retry-after", "7")]);
    for _ in 0..50 {
        let (asked, spent) = ask_for(RetryAfter::new().max_retries(2), &told).await;
        assert_eq!(asked, 3);
        // Tokio's timer counts milliseconds, and rounds up.
        assert!((14 * SECOND..=Duration::from_millis(14_502)).contains(&spent), "{spent:?}");
    }
    let (_, exact) = ask_for(RetryAfter::new().max_retries(2).jitter(Duration::ZERO), &told).await;
    assert_eq!(exact, 14 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_handed_on_at_once() {
    let (asked, spent) = ask_for(RetryAfter::new(), &answer(429, &[("retry-after", "61")])).await;
    assert_eq!((asked, spent), (1, Duration::ZERO), "to come back sooner would be no use");
    let patient = RetryAfter::new().max_wait(3600 * SECOND).max_total_wait(100 * SECOND).jitter(Duration::ZERO);
    let (asked, spent) = ask_for(patient, &answer(429, &[("retry-after", "61")])).await;
    assert_eq!((asked, spent), (2, 61 * SECOND), "a second wait would be beyond the total");
}

#[test]
fn where_it_is_not_told_it_waits_twice_as_long_each_time() {
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

/// `Retry` clones the policy for each request: one's tries are not another's.
#[tokio::test(start_paused = true)]
async fn each_request_has_its_own_tries() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = service_fn(move |_: Request<()>| {
        let refuses = counted.fetch_add(1, Ordering::Relaxed) % 4 != 3;
        let answer = answer(if refuses { 429 } else { 200 }, &[("retry-after", "1")]);
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

/// Whatever it asks for, a client under its own limit is never refused by a provider with the same one.
#[tokio::test(start_paused = true)]
async fn a_client_keeps_to_its_providers_quota() {
    let provider = Memory::builder(SlidingLog::new(Quota::per_second(10))).clock(TokioClock::new()).build();
    let provider = provider.expect("a limiter");
    let server = service_fn(move |_: Request<()>| {
        let status = if provider.check(&(), AcquireOptions::default()).is_allowed() { 200 } else { 429 };
        std::future::ready(Ok::<_, BoxError>(answer(status, &[])))
    });
    let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).strict()).clock(TokioClock::new()).build();
    let layer = RateLimitLayer::new(Global, limiter.expect("a limiter"));
    let client = ServiceBuilder::new().layer(layer.max_wait(60 * SECOND).responder(RejectWithError)).service(server);
    let asked = (0..100).map(|_| tokio::spawn(client.clone().oneshot(Request::new(()))));
    for answer in asked.collect::<Vec<_>>() {
        assert_eq!(answer.await.expect("a task").expect("its turn").status(), 200);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Whatever bytes come: an answer is read, and no wait is beyond its bounds.
    #[test]
    fn any_field_can_be_read(
        status in proptest::sample::select(vec![200_u16, 429, 503]),
        fields in proptest::collection::vec((0..FIELDS.len(), VALUE), 0..6),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (FIELDS[*name], value.as_str())).collect();
        let told = read(Method::GET, status, &fields);
        if let Some(wait) = RetryAfter::new().next_delay(told) {
            assert!(wait <= 61 * SECOND, "{wait:?}");
        }
    }
}

const FIELDS: [&str; 6] =
    ["retry-after", "ratelimit", "date", "grpc-status", "grpc-status-details-bin", "grpc-retry-pushback-ms"];

/// What may stand in a field, with much of what numbers, dates, lists and base64 are made of.
const VALUE: &str = "([0-9]{1,25}|8|14|-[0-9]{1,12}|\"[a-z]\";r=0;t=-?[0-9]{1,16}|[A-Za-z0-9+/]{0,60}={0,2}|\\PC{0,30}|\
                     (Mon|Sun), [0-9]{2} (Jan|Dec) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT)";

mod grpc {
    use tonic::metadata::MetadataMap;
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, RetryInfo, StatusExt};

    use super::*;

    /// A status with a `RetryInfo` of any bytes.
    fn with_info(code: Code, value: &[u8]) -> Status {
        let any = [field(1, RetryInfo::TYPE_URL.as_bytes()), field(2, value)].concat();
        Status::with_details(code, "no", field(3, &any).into())
    }

    /// A field of bytes in a message of protobuf.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        field.extend(bytes);
        field
    }

    /// A `RetryInfo` with a `google.protobuf.Duration`, as varints.
    fn delay(seconds: i64, nanos: i32) -> Vec<u8> {
        let mut duration = vec![0x08];
        prost::encoding::encode_varint(seconds.cast_unsigned(), &mut duration);
        duration.push(0x10);
        prost::encoding::encode_varint(i64::from(nanos).cast_unsigned(), &mut duration);
        field(1, &duration)
    }

    /// As a status, and as the header fields of an answer.
    fn read_both(status: &Status) -> RetryHint {
        let told = GrpcHint.read(status);
        let response: Response<()> = status.clone().into_http();
        assert_eq!(HttpHint.read(&Request::new(()), Ok::<_, &Infallible>(&response)), told, "{status:?}");
        told
    }

    #[test]
    fn a_retry_info_is_read() {
        let wait = Duration::new(3, 250_000_000);
        let status =
            Status::with_error_details(Code::ResourceExhausted, "no", ErrorDetails::with_retry_info(Some(wait)));
        assert_eq!(read_both(&status), RetryHint::After(wait));
        assert_eq!(read_both(&with_info(Code::Unavailable, &delay(2, 5))), RetryHint::After(Duration::new(2, 5)));
        assert_eq!(read_both(&with_info(Code::Unavailable, &[])), RetryHint::Backoff);
        for code in [Code::Ok, Code::Internal, Code::PermissionDenied, Code::Unauthenticated] {
            assert_eq!(read_both(&with_info(code, &delay(2, 5))), RetryHint::None, "{code:?}");
        }
        assert_eq!(read_both(&Status::new(Code::ResourceExhausted, "no")), RetryHint::None, "it does not say when");
        assert_eq!(ReadRetryHint::read(&GrpcHint, &(), Ok::<_, &Status>(&())), RetryHint::None);
    }

    #[test]
    fn a_hostile_retry_info_overflows_nothing() {
        let waits = [
            (-1, 0, Duration::ZERO),
            (0, -1, Duration::ZERO),
            (i64::MIN, i32::MIN, Duration::ZERO),
            (5, -1_000_000_000, Duration::from_secs(4)),
            (1_000_000_000_000_000_000, 0, Duration::from_secs(1_000_000_000_000_000_000)),
            (i64::MAX, i32::MAX, Duration::new(i64::MAX.cast_unsigned() + 2, 147_483_647)),
        ];
        for (seconds, nanos, wait) in waits {
            let told = read_both(&with_info(Code::ResourceExhausted, &delay(seconds, nanos)));
            assert_eq!(told, RetryHint::After(wait), "{seconds} s, {nanos} ns");
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
    fn pushback_takes_precedence_and_may_say_never() {
        for (pushback, told) in [
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
            assert_eq!(read_both(&status), told, "{pushback}");
        }
    }
}

/// On sockets: hyper's client against servers that say whatever they like. None of this waits.
#[tokio::test]
async fn hyper_clients_survive_hostile_servers() {
    use axum::routing::get;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;

    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let app = axum::Router::new().route(
        "/{number}",
        get(async move |axum::extract::Path(number): axum::extract::Path<usize>| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer(429, &[("retry-after", HOSTILE[number])]).map(|()| axum::body::Body::from("no"))
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });

    let sendable = HOSTILE.iter().enumerate().filter(|(_, value)| !value.contains('\0'));
    let numbers: Vec<_> = sendable.map(|(number, _)| number).collect();
    for http2 in [false, true] {
        let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http::<Full<Bytes>>();
        let policy = RetryAfter::new().max_wait(SECOND).jitter(SECOND / 100).initial_backoff(SECOND / 100);
        let client = ServiceBuilder::new().retry(policy).service(client);
        for &number in &numbers {
            let request = Request::get(format!("http://{address}/{number}")).body(Full::default()).expect("a request");
            let before = asked.load(Ordering::Relaxed);
            let answer = tokio::time::timeout(20 * SECOND, client.clone().oneshot(request)).await;
            let answer = answer.expect("it does not hang").expect("an answer");
            assert_eq!(answer.status(), 429);
            assert!(asked.load(Ordering::Relaxed) - before <= 4, "{:?}", HOSTILE[number]);
        }
    }
}

/// A reader of the parts says what the reader of whole answers says. Without a method, a 503 is final.
#[test]
fn parts_are_read_as_whole_answers_are() {
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

/// A service of a request that is not `Clone`: what the function clones is sent again, what the function does not clone
/// is sent once.
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

/// reqwest's client on a socket: a request with a body comes back, and its answer is the last one.
#[tokio::test]
async fn reqwest_client_comes_back() {
    use axum::routing::post;

    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let handler = async move |body: String| {
        let refuses = counted.fetch_add(1, Ordering::Relaxed) < 2;
        let (status, told) = if refuses { (429, "not yet".to_owned()) } else { (200, format!("got {body}")) };
        answer(status, &[("retry-after", "0")]).map(|()| axum::body::Body::from(told))
    };
    let app = axum::Router::new().route("/", post(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, app).await });

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
    assert_eq!((answer.status().as_u16(), asked.load(Ordering::Relaxed)), (200, 3));
    assert_eq!(answer.text().await.expect("a body"), "got a body");
}
