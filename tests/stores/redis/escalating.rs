//! Escalation in Redis: the decisions of memory, also of several processes, and reasons of blocks that all of them see.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tower_ratelimit::limiter::{AdminOperation, DeniedCache, Escalating, Escalation};
use tower_ratelimit::observe::Event;
use tower_ratelimit::{
    AcquireOptions, BlockReason, Clock, DynLimit, FixedWindow, Limit, Limiter as _, ManualClock, Memory, Quota, Redis,
    RedisServer,
};

use crate::helpers::{LONG_DEADLINE, acquire};
use crate::server::Server;

const MINUTE: Duration = Duration::from_secs(60);

type Process = Escalating<Redis<u64>, Redis<u64>>;

/// A process with its own connections.
fn process(server: &RedisServer, escalation: &Escalation, clock: &(impl Clock + Clone + 'static)) -> Process {
    let limits = Limit::new("api", FixedWindow::new(Quota::new(2, 3 * MINUTE)));
    let limiter = Redis::builder(server.clone(), "api", limits).clock_for_tests(clock.clone());
    let counts = Redis::builder(server.clone(), "counts", escalation.limits()).clock_for_tests(clock.clone());
    let limiter = limiter.deadline(LONG_DEADLINE).slot_by(|key: &u64| *key).build().expect("limits");
    let counts = counts.deadline(LONG_DEADLINE).slot_by(|key: &u64| *key).build().expect("limits");
    Escalating::new(limiter, counts, escalation.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_denials_of_several_processes_escalate_once_per_step() {
    let server = Server::start();
    let clock = ManualClock::new();
    let escalation = Escalation::new("api", Quota::new(3, 5 * MINUTE));
    let escalated = Arc::new(AtomicUsize::new(0));
    let processes: Vec<_> = (0..3)
        .map(|_| {
            let escalated = Arc::clone(&escalated);
            process(&server.open(), &escalation, &clock).observe(move |event: &Event<'_>| {
                if let Event::Escalated { step, .. } = event {
                    assert_eq!(*step, escalated.fetch_add(1, Ordering::SeqCst) + 1);
                }
            })
        })
        .collect();
    for (step, minutes) in [(1, 1), (2, 10), (3, 60)] {
        let requests = (0..300).map(|request| acquire(&processes[request % 3], &1, AcquireOptions::default()));
        for outcome in join_all(requests).await {
            let _ = outcome.expect("an answer");
        }
        assert_eq!(escalated.load(Ordering::SeqCst), step);
        // Another process, which has counted nothing, sees the reason.
        let other = process(&server.open(), &escalation, &clock);
        let decision = acquire(&other, &1, AcquireOptions::default()).await.expect("an answer").decision;
        assert_eq!(decision.block_reason(), Some(BlockReason::Escalation));
        // The window of the limit ends after three minutes.
        assert_eq!(decision.retry_after().expect("blocked"), minutes.max(3) * MINUTE);
        clock.advance(minutes * MINUTE);
    }
}

/// A flood costs two operations for each denial up to the block. Behind the block a cache answers.
#[tokio::test]
async fn escalation_costs_nothing_for_allowed_and_blocked_requests() {
    let server = Server::start();
    let operations = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let observer = |index: usize| {
        let operations = Arc::clone(&operations);
        move |event: &Event<'_>| {
            if let Event::Batch { size, .. } = event {
                operations[index].fetch_add(*size, Ordering::SeqCst);
            }
        }
    };
    let escalation = Escalation::new("api", Quota::per_hour(4));
    let limit = Limit::new("api", FixedWindow::new(Quota::per_hour(10)));
    let limiter: Redis<str> = Redis::builder(server.open(), "api", limit)
        .deadline(LONG_DEADLINE)
        .observe(observer(0))
        .build()
        .expect("limits");
    let counts = Redis::builder(server.open(), "counts", escalation.limits()).deadline(LONG_DEADLINE);
    let counts = counts.observe(observer(1)).build().expect("limits");
    let plain = Escalating::new(limiter.clone(), counts.clone(), escalation.clone());
    let cached = Escalating::new(DeniedCache::new(limiter), counts, escalation);
    let mut expected = [0, 0];
    let mut check = async |allowed: bool, calls: [usize; 2], request: &str| {
        let decision =
            if request == "cached" { cached.check("mallory", 1).await } else { plain.check("mallory", 1).await };
        assert_eq!(decision.expect("an answer").is_allowed(), allowed, "{request}");
        expected = [expected[0] + calls[0], expected[1] + calls[1]];
        // The event follows the reply.
        let seen = || [0, 1].map(|index: usize| operations[index].load(Ordering::SeqCst));
        for _ in 0..5_000 {
            if seen() == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(seen(), expected, "{request}");
    };
    for _ in 0..10 {
        check(true, [1, 0], "allowed").await;
    }
    for _ in 0..4 {
        check(false, [1, 1], "denied").await;
    }
    // The decision and the block; the denial, the block, and the restart of both counts.
    check(false, [2, 4], "blocks").await;
    for _ in 0..3 {
        check(false, [1, 0], "blocked").await;
    }
    check(false, [1, 0], "cached").await;
    for _ in 0..3 {
        check(false, [0, 0], "cached").await;
    }
}

/// The reason survives charges, holds and other blocks of its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_reason_of_an_escalation_stays_with_its_block() {
    let server = Server::start();
    let limit = Limit::new("api", FixedWindow::new(Quota::per_hour(100)));
    let limiter: Redis<str> =
        Redis::builder(server.open(), "api", limit.shadow()).deadline(LONG_DEADLINE).build().expect("limits");
    let reason_of = async || {
        let peeked = limiter.peek("alice", AcquireOptions::default().detail(tower_ratelimit::Detail::All)).await;
        peeked.expect("an answer").limits()[0].block_reason()
    };
    let held = acquire(&limiter, "alice", AcquireOptions::default().hold()).await.expect("an answer").held;
    for reason in [BlockReason::Escalation, BlockReason::Administrator, BlockReason::Escalation] {
        let block = AdminOperation::Block { limit: "api", duration: MINUTE, reason };
        limiter.administer("alice", block).await.expect("done");
        assert_eq!(reason_of().await, Some(reason));
        limiter.set_usage("api", "alice", 5).await.expect("done");
        assert_eq!(reason_of().await, Some(reason));
    }
    held.expect("allowed").settle(1).await.expect("done");
    assert_eq!(reason_of().await, Some(BlockReason::Escalation));
    limiter.block("api", "alice", Duration::ZERO).await.expect("done");
    assert_eq!(reason_of().await, None);
    // The limit is a shadow, which denies nothing that could escalate.
    let escalation = Escalation::new("api", Quota::per_hour(5));
    let (denials, blocks, pause) = escalation.limits();
    let counts = Memory::new([denials, blocks, pause].map(DynLimit::new).into_iter().collect::<Vec<_>>());
    let error = Escalating::new(limiter, counts, escalation).check("alice", 1).await;
    assert!(error.expect_err("a shadow").to_string().contains("a shadow or a guaranteed share denies no request"));
}

/// A client exhausts a limit with leases and goes on: the block reaches the process that has a lease within its duration.
#[tokio::test]
async fn escalation_blocks_a_key_with_leases_in_all_processes() {
    use crate::leases::{DURATION, LIMIT, QUOTA, direct, leased, pass, until_leased};

    let server = Server::start();
    let api = || Limit::new("api", FixedWindow::new(QUOTA));
    let (limiter, other) = (leased(server.open(), api()), leased(server.open(), api()));
    let escalation = Escalation::new("api", Quota::per_hour(5)).block_for([2 * MINUTE]);
    let counts = direct::<str>(server.open(), escalation.limits()).build().expect("limits");
    let escalating = Escalating::new(limiter, counts, escalation);
    until_leased(&other, "alice").await;
    let (mut denials, mut blocked) = (0, None);
    for _ in 0..LIMIT + 2_000 {
        let decision = acquire(&escalating, "alice", AcquireOptions::default()).await.expect("an answer").decision;
        denials += u64::from(!decision.is_allowed() && !decision.is_denied_by_leases());
        if decision.is_blocked() {
            blocked = decision.block_reason();
            break;
        }
        if !decision.is_allowed() {
            // The lease of the other process ends.
            crate::leases::clock().advance(DURATION);
        }
    }
    assert_eq!((blocked, denials), (Some(BlockReason::Escalation), 6));
    pass(DURATION, &other, "alice").await;
    let decision = acquire(&other, "alice", AcquireOptions::default()).await.expect("an answer").decision;
    assert_eq!(decision.block_reason(), Some(BlockReason::Escalation), "{decision:?}");
}

/// Units that a process holds unreported would be counted late.
#[test]
fn counts_of_an_escalation_cannot_be_leased() {
    let escalation = Escalation::new("api", Quota::per_hour(5));
    let builder = Redis::<str>::builder(
        RedisServer::open("redis://localhost").expect("an address"),
        "counts",
        escalation.limits(),
    );
    let error = builder.lease(tower_ratelimit::store::Lease::new(Duration::from_millis(100))).build().map(drop);
    let error = error.expect_err("counts with leases").to_string();
    assert!(error.contains("counts the denials of an escalation") && error.contains("remove `lease`"), "{error}");
}
