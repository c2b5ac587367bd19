//! Keys from an asynchronous lookup.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use tokio::sync::{Semaphore, oneshot};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::limit::ConcurrencyLimit;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::{FromExtension, LookupLayer};
use tower_ratelimit::{Gcra, ManualClock, Memory, PeerIp, Quota, RateLimitLayer};
use tower_test::mock;

use crate::support::{Get, with};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct User(u64);

type Answer = Response<String>;

fn answer(status: StatusCode) -> Answer {
    let mut response = Answer::default();
    *response.status_mut() = status;
    response
}

/// Looks up a user: Alice and Bob exist, `broken` fails.
async fn user_who_has(token: Option<String>) -> Result<Option<User>, Answer> {
    tokio::task::yield_now().await;
    match token.as_deref() {
        None => Ok(None),
        Some("alice" | "alice-too") => Ok(Some(User(1))),
        Some("bob") => Ok(Some(User(2))),
        Some("broken") => Err(answer(StatusCode::SERVICE_UNAVAILABLE)),
        Some(_) => Err(answer(StatusCode::UNAUTHORIZED)),
    }
}

fn token(request: &Get) -> Option<String> {
    request.headers().get("x-api-key").and_then(|token| token.to_str().ok()).map(str::to_owned)
}

#[tokio::test]
async fn lookup_result_is_the_key_and_an_error_the_response() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(1))).clock(ManualClock::new()).build().expect("settings");
    let service = ServiceBuilder::new()
        .layer(LookupLayer::new(|request: &Get| user_who_has(token(request))))
        .layer(RateLimitLayer::new(FromExtension::<User>::new().or(PeerIp::new()), limiter).responder(
            |_: Get, rejection: tower_ratelimit::response::Rejection| {
                answer(if rejection.is_over_limit() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::BAD_REQUEST })
            },
        ))
        .service(service_fn(move |_: Get| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Answer::default()) }
        }));
    let status = async |fields: &[(&'static str, &str)]| {
        let Ok(response) = service.clone().oneshot(with(fields)).await;
        response.status().as_u16()
    };
    assert_eq!(status(&[("x-api-key", "alice")]).await, 200);
    assert_eq!(status(&[("x-api-key", "alice-too")]).await, 429, "two tokens of one user");
    assert_eq!(status(&[("x-api-key", "bob")]).await, 200);
    assert_eq!(status(&[]).await, 200, "by the address");
    assert_eq!(status(&[]).await, 429);
    assert_eq!(served.load(Ordering::Relaxed), 3);
    for _ in 0..3 {
        assert_eq!(status(&[("x-api-key", "made-up")]).await, 401);
        assert_eq!(status(&[("x-api-key", "broken")]).await, 503);
    }
    assert_eq!(served.load(Ordering::Relaxed), 3, "an error does not reach the service");
}

/// The result of a lookup, which the test sends.
type LookupResult = Result<Option<User>, &'static str>;

/// Returns a service that is ready and has reserved the one permit of its inner service; and what ends its one lookup.
#[allow(clippy::type_complexity, reason = "the service is a closure")]
fn ready_service() -> (
    mock::Spawn<impl Service<Get, Response = &'static str, Error = BoxError>>,
    mock::Handle<Get, &'static str>,
    Arc<Semaphore>,
    oneshot::Sender<LookupResult>,
) {
    let permits = Arc::new(Semaphore::new(1));
    let (inner, mut handle) = mock::pair::<Get, &'static str>();
    let (sender, receiver) = oneshot::channel::<LookupResult>();
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let layer = LookupLayer::new(move |_: &Get| {
        let receiver = receiver.lock().expect("not poisoned").take().expect("one lookup");
        async { receiver.await.expect("the test sends a result") }
    });
    let mut service = mock::Spawn::new(layer.layer(ConcurrencyLimit::with_semaphore(inner, Arc::clone(&permits))));
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    (service, handle, permits, sender)
}

#[test]
fn lookup_keeps_the_ready_instance_and_calls_it() {
    let (mut service, mut handle, permits, sender) = ready_service();
    assert_eq!(permits.available_permits(), 0, "readiness has reserved the permit");

    let mut response = task::spawn(service.call(Get::default()));
    assert_pending!(response.poll());
    assert_pending!(task::spawn(handle.next_request()).poll());
    assert_eq!(permits.available_permits(), 0, "the lookup keeps the permit");
    assert_pending!(service.poll_ready(), "the next request waits");

    sender.send(Ok(Some(User(7)))).expect("awaited");
    assert!(response.is_woken());
    assert_pending!(response.poll());
    let (request, reply) = tokio_test::block_on(handle.next_request()).expect("called");
    assert_eq!(request.extensions().get(), Some(&User(7)));
    reply.send_response("hello");
    assert_eq!(assert_ready_ok!(response.poll()), "hello");
    drop(response);
    assert_eq!(permits.available_permits(), 0, "the waiting instance takes the permit");
}

#[test]
fn lookup_error_or_drop_releases_the_reserved_readiness() {
    for drops in [false, true] {
        let (mut service, mut handle, permits, sender) = ready_service();
        let mut response = task::spawn(service.call(Get::default()));
        assert_pending!(response.poll());
        if drops {
            drop(response);
            assert!(sender.is_closed(), "the lookup is dropped as well");
        } else {
            sender.send(Err("sorry")).expect("awaited");
            assert_eq!(assert_ready_ok!(response.poll()), "sorry");
            assert_eq!(permits.available_permits(), 1, "released with the response");
        }
        assert_eq!(permits.available_permits(), 1);
        assert_pending!(task::spawn(handle.next_request()).poll(), "the inner service was not called");
    }
}

#[test]
fn lookup_layer_and_service_are_clone_send_and_debug() {
    fn check<T: Clone + Send + Sync + 'static + std::fmt::Debug>(_: &T) {}
    let layer = LookupLayer::new(|_: &Get| user_who_has(None));
    check(&layer);
    let service = layer.layer(tower::util::BoxCloneSyncService::new(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Answer::default())
    })));
    check(&service);
    assert_eq!(format!("{layer:?}"), "LookupLayer { .. }");
}
