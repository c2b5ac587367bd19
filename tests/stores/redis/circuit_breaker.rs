//! The circuit breaker during stalls and outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{advance, pause, resume, sleep, timeout};
use tower_ratelimit::observe::Event;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Redis, RedisServer};

use crate::helpers::{AMPLE, LONG_DEADLINE, acquire};
use crate::load::answered;
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::server::Server;

/// The observed breaker transitions.
#[derive(Default)]
struct Breaker {
    opened: AtomicUsize,
    closed: Notify,
}

fn observed(proxy: &Proxy) -> (Redis<str>, Arc<Breaker>) {
    let breaker = Arc::<Breaker>::default();
    let seen = Arc::clone(&breaker);
    let server = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let builder = Redis::builder(server, "api", Gcra::new(AMPLE)).deadline(LONG_DEADLINE);
    let builder = builder.observe(move |event: &Event<'_>| match event {
        Event::Breaker { error: Some(_), .. } => drop(seen.opened.fetch_add(1, Ordering::SeqCst)),
        Event::Breaker { .. } => seen.closed.notify_one(),
        _ => {}
    });
    (builder.build().expect("limits"), breaker)
}

#[tokio::test]
async fn one_stall_counts_as_one_failure() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let (limiter, breaker) = observed(&proxy);
    limiter.health_check().await.expect("a working Redis");
    for round in 0..3 {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok(), "round {round}");
        proxy.hold(true);
        // The maximum number of batches in flight, and some calls that wait.
        let mut under_way = Vec::new();
        for _ in 0..6 {
            under_way.push(tokio::spawn(limiter.acquire("alice", AcquireOptions::default())));
            sleep(Duration::from_millis(5)).await;
        }
        pause();
        advance(LONG_DEADLINE).await;
        resume();
        for call in join_all(under_way).await {
            assert!(call.expect("no panic").expect_err("a stall").is_unavailable());
        }
        proxy.hold(false);
        assert!(
            limiter.acquire("alice", AcquireOptions::default()).try_ready().is_err(),
            "round {round}: the breaker is closed"
        );
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok(), "round {round}");
    }
    assert_eq!(breaker.opened.load(Ordering::SeqCst), 0);
}

/// While the breaker is open, one call in a while tests the server, in any runtime.
#[test]
fn breaker_opened_in_one_runtime_is_closed_by_another() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let (limiter, breaker) = observed(&proxy);
    let (first, second) = (current_thread(), current_thread());
    for round in 0..3 {
        proxy.shut(true);
        first.block_on(async {
            while breaker.opened.load(Ordering::SeqCst) == round {
                assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err(), "round {round}");
            }
            let error = acquire(&limiter, "alice", AcquireOptions::default()).await.expect_err("an open breaker");
            assert!(std::error::Error::source(&error).is_some(), "the last cause: {error:?}");
        });
        proxy.shut(false);
        second.block_on(async {
            let recovery = async {
                while acquire(&limiter, "alice", AcquireOptions::default()).await.is_err() {
                    sleep(Duration::from_millis(5)).await;
                }
                breaker.closed.notified().await;
            };
            timeout(LONG_DEADLINE, recovery).await.expect("a trial of the second runtime");
        });
    }
}

/// A user (ACL) without a permission, behind a proxy. Returns the limiter, and the number of times that its breaker opened.
fn of_user(server: &Server, proxy: &Proxy, rights: &[&str]) -> (Redis<str>, Arc<AtomicUsize>) {
    server.command(&[&["ACL", "SETUSER", "app", "reset", "on", ">secret"], rights].concat());
    let address = format!("redis://app:secret@{}", proxy.address);
    let opened = Arc::<AtomicUsize>::default();
    let seen = Arc::clone(&opened);
    let builder = Redis::builder(RedisServer::open(&address).expect("an address"), "api", Gcra::new(AMPLE));
    let builder = builder.deadline(LONG_DEADLINE).observe(move |event: &Event<'_>| {
        if matches!(event, Event::Breaker { error: Some(_), .. }) {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    (builder.build().expect("limits"), opened)
}

/// The outage ends when decisions work. It needs no other permission than decisions.
#[tokio::test]
async fn breaker_closes_without_permissions_that_decisions_do_not_need() {
    let server = Server::start();
    for rights in [&["~ratelimit:*", "+@all", "-script"][..], &["~ratelimit:api:*", "+@all"]] {
        let proxy = Proxy::before(server.socket());
        let (limiter, opened) = of_user(&server, &proxy, rights);
        let outcome = acquire(&limiter, "alice", AcquireOptions::default()).await;
        assert!(outcome.is_ok(), "the permissions suffice: {outcome:?}");
        proxy.shut(true);
        while opened.load(Ordering::SeqCst) == 0 {
            assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err());
        }
        proxy.shut(false);
        answered(&limiter, "alice", 1).await;
    }
}

/// An answer about the call is no outage: each decision and each hold names the missing permission.
#[tokio::test]
async fn missing_permission_opens_no_breaker() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    for rights in [
        &["~ratelimit:*", "+@all", "-time"][..],
        &["~ratelimit:*", "+@all", "-evalsha", "-eval"],
        &["~other:*", "+@all"],
    ] {
        let (limiter, opened) = of_user(&server, &proxy, rights);
        for number in 0..50 {
            let options = if number % 2 == 0 { AcquireOptions::default() } else { AcquireOptions::default().hold() };
            let error = acquire(&limiter, "alice", options).await.expect_err("a permission is missing");
            assert!(error.to_string().contains("the user (ACL) may not"), "{rights:?}: {error:?}");
        }
        assert_eq!(opened.load(Ordering::SeqCst), 0, "{rights:?}");
    }
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// `block_on` for each decision: nothing drives a task in between. Decisions go on after a closed connection, a restart and an
/// outage.
#[test]
fn decisions_in_block_on_go_on() {
    let mut server = Server::start();
    let proxy = Proxy::before(server.socket());
    let redis = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let builder = Redis::builder(redis, "api", Gcra::new(AMPLE)).deadline(Duration::from_millis(500));
    let (limiter, runtime): (Redis<str>, _) = (builder.build().expect("limits"), current_thread());
    let decide = || runtime.block_on(acquire(&limiter, "alice", AcquireOptions::default()));
    let recover = |what: &str| wait_until(what, || decide().is_ok());
    recover("a first connection");
    for _ in 0..3 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        recover("a closed connection");
        server.kill();
        server.restart();
        recover("a restart");
        proxy.shut(true);
        while !decide().is_err_and(|error| error.to_string().contains("circuit breaker open")) {}
        proxy.shut(false);
        recover("an outage");
    }
}
