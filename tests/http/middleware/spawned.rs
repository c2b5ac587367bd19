//! Stacks of clients whose service is a closure with a `BoxError`, used in spawned tasks.
//!
//! The compiler proves that a task is `Send` with unknown lifetimes in place of `'static`. A stack with a bound such as
//! `BoxError: From<Error>` fails that proof.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tower::retry::Policy;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, RejectWithError, Rejection};
use tower_ratelimit::retry::{HttpHint, RetryAfter};
use tower_ratelimit::{BoxLimiter, Gcra, Quota, RateLimitLayer, TokioClock};

use crate::support::{memory, spawn};

fn layer(burst: u64) -> RateLimitLayer<Global, BoxLimiter<()>, RejectWithError> {
    let limiter = memory(Gcra::new(Quota::per_second(10)).burst(burst), TokioClock::new());
    RateLimitLayer::new(Global, limiter).responder(RejectWithError)
}

#[tokio::test(start_paused = true)]
async fn closure_with_box_error_is_spawned() {
    let waiting = layer(1)
        .max_wait(Duration::from_secs(1))
        .layer(service_fn(async |number: u32| if number == 0 { Err(BoxError::from("zero")) } else { Ok(number) }));
    let calls = [1, 0, 2].map(|number| {
        let mut client = waiting.clone();
        spawn(async move { client.ready().await?.call(number).await })
    });
    let [first, zero, second] = calls;
    assert_eq!(first.await.expect("no panic").expect("a response"), 1);
    assert_eq!(zero.await.expect("no panic").expect_err("the service's error").to_string(), "zero");
    assert_eq!(second.await.expect("no panic").expect("a response"), 2);

    let oneshot = layer(1).layer(service_fn(|number: u32| async move { Ok::<_, BoxError>(number) }));
    assert_eq!(spawn(oneshot.clone().oneshot(3)).await.expect("no panic").expect("a response"), 3);
    let denied = spawn(async move { oneshot.oneshot(4).await }).await.expect("no panic");
    assert!(denied.expect_err("a rejection").is::<Rejection>());
}

/// Retries a failed call at once.
#[derive(Clone)]
struct RetryErrors(u32);

impl<Response, Error> Policy<u32, Response, Error> for RetryErrors {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut u32, result: &mut Result<Response, Error>) -> Option<Self::Future> {
        self.0 = self.0.checked_sub(1)?;
        result.is_err().then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &u32) -> Option<u32> {
        Some(*request)
    }
}

#[tokio::test(start_paused = true)]
async fn retry_around_the_limit_is_spawned() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let started = tokio::time::Instant::now();
    let client = ServiceBuilder::new().retry(RetryErrors(2)).layer(layer(1).max_wait(Duration::from_secs(30))).service(
        service_fn(move |number: u32| {
            let attempt = counted.fetch_add(1, Ordering::Relaxed);
            async move { if attempt < 2 { Err(BoxError::from("not yet")) } else { Ok(number) } }
        }),
    );
    let mut task = client.clone();
    let answer = spawn(async move { task.ready().await?.call(7).await });
    assert_eq!(answer.await.expect("no panic").expect("the third attempt"), 7);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    // The limit counts retries too: the second and the third attempt wait for 100 ms each.
    assert_eq!(started.elapsed(), Duration::from_millis(200));
    let oneshot = spawn(async move { client.oneshot(8).await });
    assert_eq!(oneshot.await.expect("no panic").expect("a response"), 8);
}

#[tokio::test(start_paused = true)]
async fn retry_after_around_the_limit_is_spawned() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let http = service_fn(move |_: Request<()>| {
        let status = if counted.fetch_add(1, Ordering::Relaxed) == 0 { 429 } else { 200 };
        async move { Ok::<_, BoxError>(Response::builder().status(status).header("retry-after", "2").body(())?) }
    });
    let by_default = RetryAfter::new().jitter(Duration::ZERO);
    let read =
        |_: &Request<()>, response: &Response<()>| HttpHint.read_response(None, response.status(), response.headers());
    let limit = layer(1).max_wait(Duration::from_secs(30));
    let client = ServiceBuilder::new().retry(by_default.clone()).layer(limit.clone()).service(http.clone());
    let started = tokio::time::Instant::now();
    let answer = spawn(client.oneshot(Request::new(())));
    assert_eq!(answer.await.expect("no panic").expect("a response").status(), 200);
    assert_eq!(started.elapsed(), Duration::from_secs(2));

    calls.store(0, Ordering::Relaxed);
    let mut client = ServiceBuilder::new().retry(by_default.read_responses(read)).layer(limit).service(http);
    let answer = spawn(async move { client.ready().await?.call(Request::new(())).await });
    assert_eq!(answer.await.expect("no panic").expect("a response").status(), 200);
    // Both clients share the limit, so the second client waits for 100 ms after the first one's retry.
    assert_eq!(started.elapsed(), Duration::from_millis(4_100));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

/// A service with any error type, and one whose type is erased.
#[tokio::test(start_paused = true)]
async fn other_errors_become_box_errors_by_map_err() {
    let client = ServiceBuilder::new()
        .retry(RetryErrors(0))
        .layer(layer(1))
        .map_err(BoxError::from)
        .service(service_fn(async |number: u32| Ok::<_, Infallible>(number)));
    let boxed: BoxCloneSyncService<u32, u32, BoxError> = BoxCloneSyncService::new(client.clone());
    assert_eq!(spawn(async move { client.oneshot(5).await }).await.expect("no panic").expect("a response"), 5);
    let limited = layer(1).layer(boxed);
    let error = spawn(async move { limited.oneshot(6).await }).await.expect("no panic");
    assert!(error.expect_err("the inner limit").is::<Rejection>());
}

/// An error type of the application, which keeps both kinds of error typed.
#[tokio::test(start_paused = true)]
async fn typed_error_holds_the_rejection() {
    #[derive(Debug)]
    enum ApiError {
        Limited(Rejection),
        Refused(u32),
    }

    impl From<Rejection> for ApiError {
        fn from(rejected: Rejection) -> Self {
            Self::Limited(rejected)
        }
    }

    let mut client = layer(1).layer(service_fn(async |number: u32| Err::<u32, _>(ApiError::Refused(number))));
    let refused = client.ready().await.expect("ready").call(7).await;
    assert!(matches!(refused, Err(ApiError::Refused(7))));
    let Err(ApiError::Limited(rejected)) = client.ready().await.expect("ready").call(7).await else {
        panic!("a rejection")
    };
    assert_eq!(rejected.retry_after_secs(), Some(1));
}
