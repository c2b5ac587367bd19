//! `RedisCell` on a Redis with the redis-cell module (`CL.THROTTLE`).

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::{Instant, advance, pause, resume, sleep};
use tower_ratelimit::limiter::AdminOperation;
use tower_ratelimit::{AcquireOptions, BlockReason, Limiter, Quota, RedisCell, RedisServer, Verdict};

use crate::helpers::{LONG_DEADLINE, acquire, decides_beside_a_stopped_runtime, is_allowed};
use crate::load::answered;
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::server::Server;

pub(crate) fn with_module() -> Server {
    let library = std::env::var("REDIS_CELL").unwrap_or_else(|_| {
        panic!("these tests load redis-cell: build it with `export REDIS_CELL=$(scripts/redis-cell)`, or run `scripts/test`")
    });
    assert!(std::path::Path::new(&library).exists(), "the file in REDIS_CELL does not exist: run scripts/redis-cell");
    Server::with(&["--loadmodule", &library])
}

fn limiter(server: &Server, quota: Quota) -> RedisCell {
    RedisCell::builder(server.open(), "api", quota).deadline(LONG_DEADLINE).build().expect("a quota")
}

fn behind(proxy: &Proxy) -> RedisCell {
    let through = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    RedisCell::builder(through, "api", Quota::per_hour(1_000)).deadline(LONG_DEADLINE).build().expect("a quota")
}

#[tokio::test]
async fn cell_limiter_decides_by_its_quota() {
    let server = with_module();
    let limiter = limiter(&server, Quota::per_hour(3));
    limiter.health_check().await.expect("a Redis with the module");
    for remaining in [2, 1, 0] {
        let decision = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
        assert_eq!((decision.verdict(), decision.remaining()), (Verdict::Allowed, Some(remaining)));
        let status = decision.most_restrictive().expect("the limit");
        assert_eq!((status.name(), status.limit(), status.window()), ("default", 3, Some(Duration::from_secs(3_600))));
        assert!(decision.reset() <= Some(Duration::from_secs(1_200 * (3 - remaining))), "{decision:?}");
    }
    let denied = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer");
    assert!(!denied.decision.is_allowed());
    let wait = denied.decision.retry_after().expect("a time");
    assert!(wait > Duration::from_secs(600) && wait <= Duration::from_secs(1_200), "{wait:?}");
    assert!(is_allowed(&limiter, "bob").await);
    assert_eq!(limiter.redis_key("alice"), "ratelimit:api:default:cell:alice");
    // The key of the health check lives for an instant.
    wait_until("two keys", || {
        let mut keys = server.keys();
        keys.sort();
        keys == ["ratelimit:api:default:cell:alice", "ratelimit:api:default:cell:bob"]
    });
}

#[tokio::test]
async fn cell_retry_after_is_sufficient_and_exceeds_by_at_most_a_second() {
    let server = with_module();
    for quota in [Quota::per_second(10), Quota::per_second(3), Quota::per_second(1)] {
        let limiter = limiter(&server, quota);
        for cost in [1, quota.limit()] {
            let ask = |cost| acquire(&limiter, "alice", AcquireOptions::cost(cost));
            let wait = loop {
                limiter.reset("alice").await.expect("done");
                let _ = ask(quota.limit()).await.expect("an answer");
                if let Some(wait) = ask(cost).await.expect("an answer").decision.retry_after() {
                    break wait;
                }
            };
            let began = Instant::now();
            let peeked = limiter.peek("alice", AcquireOptions::cost(cost)).await.expect("an answer").retry_after();
            assert!(peeked <= Some(wait + Duration::from_secs(1)), "{peeked:?} {wait:?}");
            sleep(wait).await;
            let after = limiter.peek("alice", AcquireOptions::cost(cost)).await.expect("an answer");
            assert!(after.is_allowed(), "{quota} at {cost}: {wait:?} {:?} {after:?}", began.elapsed());
            assert!(wait <= quota.period() + Duration::from_secs(1), "{wait:?}");
        }
    }
}

#[tokio::test]
async fn cell_cost_is_charged_and_peek_is_not() {
    let server = with_module();
    let limiter = RedisCell::builder(server.open(), "api", Quota::per_hour(6))
        .burst(10)
        .deadline(LONG_DEADLINE)
        .build()
        .expect("a quota");
    let remaining = async || limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining();
    let verdict_of = async |cost| {
        acquire(&limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision.verdict()
    };
    assert_eq!(remaining().await, Some(10));
    assert_eq!(verdict_of(7).await, Verdict::Allowed);
    assert_eq!(remaining().await, Some(3));
    assert!(!verdict_of(4).await.is_allowed());
    assert!(!limiter.peek("alice", AcquireOptions::cost(4)).await.expect("an answer").is_allowed());
    assert!(limiter.peek("alice", AcquireOptions::cost(3)).await.expect("an answer").is_allowed());
    assert_eq!(remaining().await, Some(3));
    assert_eq!(verdict_of(3).await, Verdict::Allowed);
    assert_eq!(verdict_of(0).await, Verdict::Allowed);
    assert_eq!(remaining().await, Some(0));
    limiter.reset("alice").await.expect("done");
    assert_eq!(remaining().await, Some(10));
    // The module replies -1 to these costs, as to allowed requests.
    for cost in [11, 1 << 40, u64::MAX] {
        assert_eq!(verdict_of(cost).await, Verdict::ExceedsLimit);
        assert!(limiter.peek("alice", AcquireOptions::cost(cost)).await.expect("an answer").exceeds_limit());
    }
    assert_eq!(remaining().await, Some(10));
}

#[tokio::test]
async fn concurrent_cell_calls_never_exceed_the_quota() {
    let server = with_module();
    let limiter = limiter(&server, Quota::per_hour(1_000));
    limiter.health_check().await.expect("a Redis with the module");
    let before = server.number_of("cmdstat_cl.throttle:calls=");
    let outcomes = join_all((0..3_000).map(|_| acquire(&limiter, "alice", AcquireOptions::default()))).await;
    let allowed = outcomes.into_iter().filter(|outcome| outcome.as_ref().expect("an answer").decision.is_allowed());
    assert_eq!(allowed.count(), 1_000);
    assert_eq!(server.number_of("cmdstat_cl.throttle:calls=") - before, 3_000);
}

#[tokio::test]
async fn cell_operations_without_a_command_are_unsupported() {
    let server = with_module();
    let limiter = limiter(&server, Quota::per_minute(3));
    assert!(
        acquire(&limiter, "alice", AcquireOptions::default().hold()).await.expect_err("unsupported").is_unsupported()
    );
    let set_usage = AdminOperation::SetUsage { limit: "default", used: 1 };
    let block =
        AdminOperation::Block { limit: "default", duration: Duration::from_secs(1), reason: BlockReason::default() };
    for operation in [set_usage, block] {
        assert!(limiter.administer("alice", operation).await.expect_err("unsupported").is_unsupported());
    }
}

#[tokio::test]
async fn server_without_the_module_is_named_in_the_error() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_minute(3));
    let checked = limiter.health_check().await.expect_err("no module");
    assert!(checked.is_unavailable() && checked.to_string().contains("has no CL.THROTTLE"), "{checked}");
    for _ in 0..10 {
        let error = acquire(&limiter, "alice", AcquireOptions::default()).await.expect_err("no module");
        assert!(error.is_unavailable() && error.to_string().contains("has no CL.THROTTLE"), "{error}");
    }
}

#[tokio::test]
async fn key_of_another_type_fails_alone() {
    let server = with_module();
    let limiter = limiter(&server, Quota::per_minute(3));
    server.command(&["RPUSH", &limiter.redis_key("list"), "x"]);
    server.command(&["SET", &limiter.redis_key("text"), "x"]);
    let (list, text, good) = tokio::join!(
        acquire(&limiter, "list", AcquireOptions::default()),
        acquire(&limiter, "text", AcquireOptions::default()),
        acquire(&limiter, "good", AcquireOptions::default())
    );
    assert!(list.expect_err("a key of another type").is_unavailable());
    let text = text.expect_err("a foreign value");
    let address = server.socket();
    let expected =
        format!("the call to Redis ({address}) failed: the server returned an error; see the source of this error");
    assert!(text.is_unavailable() && text.to_string() == expected, "{text}");
    assert!(good.expect("an answer").decision.is_allowed());
}

/// Replies stay away, as on a half-open connection, and the caller does not wait for its deadline.
#[tokio::test]
async fn connection_without_a_reply_to_an_abandoned_command_is_replaced() {
    let server = with_module();
    let proxy = Proxy::before(server.socket());
    let limiter = behind(&proxy);
    assert!(is_allowed(&limiter, "alice").await);
    let before = proxy.connections();
    proxy.hold(true);
    let sent = server.number_of("cmdstat_cl.throttle:calls=");
    let mut abandoned = limiter.acquire("alice", AcquireOptions::default());
    while server.number_of("cmdstat_cl.throttle:calls=") == sent {
        assert!((&mut abandoned).now_or_never().is_none(), "no reply passes");
        sleep(Duration::from_millis(1)).await;
    }
    drop(abandoned);
    pause();
    advance(LONG_DEADLINE * 2).await;
    resume();
    let mut next = limiter.acquire("bob", AcquireOptions::default());
    while proxy.connections() == before {
        assert!((&mut next).now_or_never().is_none(), "no reply passes");
        sleep(Duration::from_millis(1)).await;
    }
    proxy.hold(false);
    assert!(next.await.expect("an answer").decision.is_allowed());
}

/// The caller that opens the connection gives up before it is open.
#[tokio::test]
async fn connection_that_is_being_opened_survives_its_caller() {
    let server = with_module();
    let proxy = Proxy::before(server.socket());
    let limiter = behind(&proxy);
    proxy.hold(true);
    for _ in 0..3 {
        let mut abandoned = limiter.acquire("alice", AcquireOptions::default());
        while proxy.connections() == 0 {
            assert!((&mut abandoned).now_or_never().is_none(), "no reply passes");
            sleep(Duration::from_millis(1)).await;
        }
        assert!((&mut abandoned).now_or_never().is_none(), "no reply passes");
    }
    proxy.hold(false);
    assert!(is_allowed(&limiter, "alice").await);
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_fails_by_deadline_and_recovers() {
    let mut server = with_module();
    let limiter = RedisCell::builder(server.open(), "api", Quota::per_second(1_000_000))
        .deadline(Duration::from_millis(200))
        .build()
        .expect("a quota");
    limiter.health_check().await.expect("a Redis with the module");
    server.signal("-STOP");
    for _ in 0..10 {
        let began = Instant::now();
        assert!(
            acquire(&limiter, "alice", AcquireOptions::default())
                .await
                .expect_err("the server is stopped")
                .is_unavailable()
        );
        assert!(began.elapsed() < LONG_DEADLINE, "the call hangs: {:?}", began.elapsed());
    }
    server.signal("-CONT");
    server.kill();
    server.restart();
    answered(&limiter, "alice", 1).await;
}

#[test]
fn invalid_cell_configuration_is_a_build_error() {
    let server = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let build = |name, quota, burst, deadline| {
        RedisCell::builder(server.clone(), name, quota).burst(burst).deadline(deadline).build().map(|_| ())
    };
    let minute = Quota::per_minute(1);
    assert!(build("api", minute, 1, LONG_DEADLINE).is_ok());
    for invalid in [
        build("", minute, 1, LONG_DEADLINE),
        build("api", minute, 0, LONG_DEADLINE),
        build("api", minute, 1, Duration::ZERO),
        build("api", Quota::new(1, Duration::from_millis(500)), 1, LONG_DEADLINE),
        build("api", Quota::per_second(1_000_001), 1, LONG_DEADLINE),
        build("api", Quota::per_day(1), 1 << 40, LONG_DEADLINE),
    ] {
        assert!(invalid.expect_err("invalid configuration").is_config());
    }
}

/// A runtime stops while it opens the connection that all share.
#[test]
fn stopped_runtime_that_opens_a_connection_does_not_stop_others() {
    let server = with_module();
    let builder = RedisCell::builder(server.open(), "api", Quota::per_hour(1_000));
    let limiter = builder.deadline(Duration::from_millis(300)).build().expect("a quota");
    decides_beside_a_stopped_runtime(&server, || acquire(&limiter, "alice", AcquireOptions::default()));
}
