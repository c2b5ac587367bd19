//! The memory of waiting requests.

use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};

const KEYS: u64 = 10_000;
const REQUESTS: u64 = 100_000;

#[allow(clippy::trivially_copy_pass_by_ref, clippy::unnecessary_wraps, reason = "a key extractor")]
fn own_key(key: &u64) -> Option<u64> {
    Some(*key)
}

/// Ten requests of each of ten thousand keys wait. docs/design.md states the bound.
#[test]
fn waiting_request_takes_less_than_1140_bytes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_minute(1))).max_keys(20_000).build().expect("a limiter");
    let layer = RateLimitLayer::new(own_key as fn(&u64) -> Option<u64>, limiter).responder(RejectWithError);
    let layer = layer.max_wait(Duration::from_secs(3600)).max_waiters(200_000);
    let mut service = layer.layer(service_fn(|_: u64| ready(Ok::<_, BoxError>(()))));
    let mut cx = Context::from_waker(Waker::noop());
    for key in 0..KEYS {
        let mut first = pin!(service.call(key));
        assert!(matches!(first.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
    }
    let mut waiting: Vec<Pin<Box<dyn Future<Output = Result<(), BoxError>>>>> = Vec::with_capacity(200_000);
    let used = measure(|| {
        for index in 0..REQUESTS {
            let mut response = Box::pin(service.call(index % KEYS));
            assert!(response.as_mut().poll(&mut cx).is_pending());
            waiting.push(response);
        }
    });
    let each = used.bytes_current / i64::try_from(REQUESTS).expect("a small number");
    println!("{each} bytes for each of {REQUESTS} waiting requests of {KEYS} keys");
    assert!(each < 1140, "{each} bytes");
    let described = format!("{layer:?}");
    assert!(described.contains(&format!("queues: {KEYS}")), "{described}");
    drop(waiting);
    let described = format!("{layer:?}");
    assert!(described.contains("waiting: 0"), "{described}");
}
