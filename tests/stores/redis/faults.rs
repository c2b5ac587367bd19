//! Faults of Redis under load: every decision is answered within its deadline, and service resumes by itself.
//!
//! A failed decision is an `unavailable` error. Each test prints one line of a table (`--nocapture`).

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_ratelimit::limiter::{FailOpen, Fallback};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DecisionSource, DynLimit, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota,
    Redis, RedisServer,
};

use crate::helpers::{AMPLE, acquire, every_algorithm, is_allowed, redis_limiter};
use crate::load::{DEADLINE, Load, answered, until};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;

fn limiter(server: RedisServer) -> Redis<str> {
    Redis::builder(server, "api", Gcra::new(AMPLE)).deadline(DEADLINE).build().expect("limits")
}

async fn loaded_by(limiter: &Redis<str>) -> Load {
    limiter.health_check().await.expect("a working Redis");
    let load = Load::on(limiter);
    load.until_answered("a decision succeeds").await;
    load
}

/// A fault: its name, what begins it, and what ends it.
type Fault = (&'static str, fn(&mut Server), fn(&mut Server));

fn config(server: &Server, name: &str, value: &str) {
    assert!(server.command(&["CONFIG", "SET", name, value]).starts_with("+OK"), "{name}");
}

fn be_a_replica_of_nobody(server: &mut Server) {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn be_a_master(server: &mut Server) {
    server.command(&["REPLICAOF", "NO", "ONE"]);
}

/// Faults that let decisions fail.
const FAULTS: [Fault; 9] = [
    ("kill -9, back after failures", Server::kill, Server::restart),
    ("kill -STOP, -CONT after failures", |server| server.signal("-STOP"), |server| server.signal("-CONT")),
    ("CLIENT PAUSE", |server| server.pause(4 * DEADLINE), |_| {}),
    ("maxmemory reached (OOM)", |server| config(server, "maxmemory", "1"), |server| config(server, "maxmemory", "0")),
    ("REPLICAOF a dead port (READONLY)", be_a_replica_of_nobody, be_a_master),
    (
        "REPLICAOF a dead port (MASTERDOWN)",
        |server| {
            config(server, "replica-serve-stale-data", "no");
            be_a_replica_of_nobody(server);
        },
        be_a_master,
    ),
    (
        "wrong password (requirepass)",
        |server| {
            server.commands(&[&["CONFIG", "SET", "requirepass", "other"], &["CLIENT", "KILL", "TYPE", "normal"]]);
        },
        |server| {
            server.commands(&[&["AUTH", "other"], &["CONFIG", "SET", "requirepass", ""]]);
        },
    ),
    (
        "ACL without scripting (NOPERM)",
        |server| {
            server.command(&["ACL", "SETUSER", "default", "-@scripting"]);
        },
        |server| {
            server.command(&["ACL", "SETUSER", "default", "+@all"]);
        },
    ),
    (
        "an endless script (BUSY)",
        |server| {
            config(server, "busy-reply-threshold", "50");
            let address = server.address();
            std::thread::spawn(move || {
                let client = redis::Client::open(address).expect("an address");
                let mut connection = client.get_connection().expect("a connection");
                redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection).expect_err("it is killed")
            });
        },
        |server| while !server.command(&["SCRIPT", "KILL"]).starts_with("+OK") {},
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_resumes_after_each_fault() {
    let mut server = Server::start();
    let limiter = limiter(server.open());
    for (name, begin, end) in FAULTS {
        let load = loaded_by(&limiter).await;
        begin(&mut server);
        load.until_failed(name).await;
        end(&mut server);
        let over = Instant::now();
        load.until_answered(name).await;
        load.report(name, over).await;
    }
}

/// Faults that are too short for the failure of a certain decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_resumes_after_a_restart_and_while_data_is_loaded() {
    let mut server =
        Server::with(&["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"]);
    let load = loaded_by(&limiter(server.open())).await;
    server.kill();
    server.restart();
    load.until_answered("a restart").await;
    server.command(&["DEBUG", "POPULATE", "2000", "key", "100"]);
    config(&server, "key-load-delay", "300");
    tokio::task::block_in_place(|| server.command(&["DEBUG", "RELOAD"]));
    let over = Instant::now();
    load.until_answered("loading its data (LOADING)").await;
    load.report("a restart, and loading its data (LOADING)", over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_causes_no_error() {
    let server = Server::start();
    let load = loaded_by(&redis_limiter(server.open(), "api", Gcra::new(AMPLE))).await;
    for _ in 0..10 {
        server.command(&["SCRIPT", "FLUSH"]);
        sleep(Duration::from_millis(20)).await;
    }
    load.until_answered("SCRIPT FLUSH").await;
    assert_eq!(load.failed(), 0);
    load.report("SCRIPT FLUSH, ten times", Instant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_a_reply_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let behind = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let load = loaded_by(&redis_limiter(behind, "api", Gcra::new(AMPLE))).await;
    for _ in 0..3 {
        proxy.cut_next_reply();
        load.until_failed("a cut").await;
        load.until_answered("a decision succeeds").await;
    }
    assert!(load.failed() < 3 * 3 * 48, "{}", load.failed());
    load.report("cut in the middle of a reply, 3 times", Instant::now()).await;
}

// ---------------------------------------------------------------------------------------------------------------------
// Circuit breaker
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_breaker_answers_immediately_and_detects_recovery() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let limiter = limiter(RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address"));
    let load = loaded_by(&limiter).await;
    proxy.shut(true);
    // The breaker is open, so calls fail immediately, but for one in a while.
    let is_immediate = || matches!(limiter.acquire("alice", AcquireOptions::default()).try_ready(), Ok(Err(error)) if error.is_unavailable());
    until("the breaker opens", async || is_immediate()).await;
    let (began, immediate) = (Instant::now(), (0..1000).filter(|_| is_immediate()).count());
    assert!(immediate + usize::try_from(began.elapsed().as_millis() / 100).expect("small") + 1 >= 1000, "{immediate}");
    let (before, began) = (proxy.connections(), Instant::now());
    sleep(Duration::from_secs(1)).await;
    let (probes, most) = (proxy.connections() - before, began.elapsed().as_millis() / 100 + 2);
    assert!(u128::try_from(probes).expect("small") <= most, "{probes} connections during the outage");
    assert!(probes > 0, "a decision tests the server");
    proxy.shut(false);
    let over = Instant::now();
    load.until_answered("the breaker closes").await;
    assert!(load.failed() > 0);
    load.report("all connections refused for 1.3 s", over).await;
}

#[tokio::test]
async fn one_stalled_call_does_not_open_the_breaker_with_a_responding_server() {
    let server = Server::start();
    let limiter = Redis::builder(server.open(), "api", Gcra::new(AMPLE))
        .deadline(Duration::from_millis(100))
        .build()
        .expect("limits");
    assert!(is_allowed(&redis_limiter(server.open(), "api", Gcra::new(AMPLE)), "warm").await);
    limiter.health_check().await.expect("a working Redis");
    for _ in 0..5 {
        let late = loop {
            server.pause(Duration::from_millis(130));
            // A machine that stalls may send the call after the pause.
            if let Err(late) = acquire(&limiter, "alice", AcquireOptions::default()).await {
                break late;
            }
        };
        assert!(late.is_unavailable() && late.to_string().contains("deadline"), "{late}");
        sleep(Duration::from_millis(60)).await;
        assert!(limiter.acquire("alice", AcquireOptions::default()).try_ready().is_err(), "the breaker is closed");
        answered(&limiter, "alice", 1).await;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys of another type or content
// ---------------------------------------------------------------------------------------------------------------------

/// Decides on a key with foreign content and on four valid keys in one batch.
async fn check_other_keys(name: &str, limiter: &impl Limiter<str>, content: &str) {
    let acquisitions = ["a", "b", "bad", "c", "bad", "d"].map(|key| acquire(limiter, key, AcquireOptions::default()));
    for (index, result) in join_all(acquisitions).await.into_iter().enumerate() {
        match result {
            Ok(_) => {}
            Err(error) if index == 2 || index == 4 => {
                assert!(error.is_unavailable() && error.to_string().contains("no state"), "{name} {content} {error:?}");
            }
            Err(error) => panic!("{name}, {content}: another key fails: {error:?}"),
        }
    }
}

fn key_of(server: &Server, name: &str) -> String {
    let escaped = name.replace(' ', "%20");
    let matches = |key: &String| key.starts_with(&format!("ratelimit:{escaped}:")) && key.ends_with(":bad");
    server.keys().into_iter().find(matches).expect("a key")
}

#[tokio::test]
async fn key_of_another_type_fails_no_other_key() {
    let server = Server::start();
    for (name, limiter) in every_algorithm(&server.open(), Quota::per_minute(100_000), None::<&ManualClock>) {
        assert!(is_allowed(&limiter, "bad").await);
        let key = key_of(&server, name);
        for put in
            [&["RPUSH", &key, "1"][..], &["HSET", &key, "a", "b"], &["SADD", &key, "x"], &["ZADD", &key, "1", "x"]]
        {
            server.commands(&[&["DEL", &key], put]);
            check_other_keys(name, &limiter, put[0]).await;
            let bad = acquire(&limiter, "bad", AcquireOptions::default()).await.expect_err("no state of a limiter");
            assert!(bad.to_string().contains(&key), "{bad}");
            // The other operations fail as well.
            assert!(limiter.peek("bad", AcquireOptions::default()).await.is_err());
            assert!(limiter.reset("bad").await.is_err());
            assert!(limiter.set_usage("default", "bad", 1).await.is_err());
            assert!(limiter.block("default", "bad", DEADLINE).await.is_err());
            assert_ne!(server.command(&["TYPE", &key]), "+none\r\n", "foreign keys are kept");
        }
    }
}

#[tokio::test]
async fn invalid_state_bytes_fail_no_other_key() {
    let server = Server::start();
    let mut random = Random::new(42);
    for (name, limiter) in every_algorithm(&server.open(), Quota::per_minute(100_000), None::<&ManualClock>) {
        assert!(is_allowed(&limiter, "bad").await);
        let key = key_of(&server, name);
        for round in 0..150 {
            let words = [1, 2, 4, 5, 6, 7, 8, 9, 16, 17, 66, 120][round % 12];
            let mut bytes = Vec::new();
            for word in 0..words {
                let number = match random.below(9) {
                    0 => f64::NAN,
                    1 => f64::INFINITY,
                    2 => -1.0,
                    3 => 0.5,
                    4 => 9_007_199_254_740_992.0,
                    5 => f64::from(u32::try_from(random.below(12)).expect("small")),
                    6 => 1_800_000_000_000_000.0,
                    7 => 0.0,
                    _ => f64::from_bits(random.number()),
                };
                // Every second round holds numbers that are valid in a state.
                let number = if round % 2 == 0 && !(0.0..1e16).contains(&number) { 1.0 } else { number };
                let number = if round % 3 == 0 && word == 4 { 11.0 } else { number };
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(std::iter::repeat_n(b'x', usize::try_from(random.below(2)).expect("small") * (round % 5)));
            if name == "sliding log" && round % 4 > 0 {
                // A list whose first elements could be a header and hits.
                let element = random.number().to_le_bytes().repeat(2);
                server.command(&["DEL", &key]);
                server.bytes(&[b"RPUSH", key.as_bytes(), &bytes, &element[2..], &element[..round % 16], b""]);
            } else {
                server.bytes(&[b"SET", key.as_bytes(), &bytes]);
            }
            check_other_keys(name, &limiter, &format!("{bytes:?}")).await;
            let outcome = acquire(&limiter, "bad", AcquireOptions::cost(3)).await;
            let held = acquire(&limiter, "bad", AcquireOptions::cost(1).hold()).await;
            if outcome.is_ok() {
                let _ = limiter.set_usage("default", "bad", 7).await;
                if let Ok(Some(held)) = held.map(|outcome| outcome.held) {
                    let _ = held.settle(2).await;
                }
                let _ = limiter.block("default", "bad", DEADLINE).await;
            }
        }
        assert!(server.command(&["PING"]).contains("PONG"));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Fallback and fail open
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn fallback_decides_while_redis_is_unavailable_and_is_the_source() {
    let mut server = Server::start();
    let second = BoxLimiter::new(Memory::new(vec![DynLimit::new(FixedWindow::new(Quota::per_hour(2)))]));
    let limiter = Fallback::new(BoxLimiter::new(limiter(server.open())), second);
    assert_eq!(
        acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision.source(),
        DecisionSource::Store
    );
    server.kill();
    let mut allowed = 0;
    for _ in 0..50 {
        let outcome = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer");
        assert_eq!(outcome.decision.source(), DecisionSource::Fallback);
        allowed += u32::from(outcome.decision.is_allowed());
        assert_eq!(
            limiter.peek("alice", AcquireOptions::default()).await.expect("an answer").source(),
            DecisionSource::Fallback
        );
    }
    assert_eq!(allowed, 2);
    server.restart();
    let request = async || acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
    until("a decision of Redis", async || request().await.source() == DecisionSource::Store).await;
}

#[tokio::test]
async fn fail_open_allows_while_redis_is_unavailable_and_is_the_source() {
    let mut server = Server::start();
    let limiter = FailOpen::new(BoxLimiter::new(limiter(server.open())));
    assert_eq!(
        acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision.source(),
        DecisionSource::Store
    );
    server.kill();
    for _ in 0..50 {
        let decision = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
        assert!(decision.is_allowed() && decision.source() == DecisionSource::NoLimit);
        let peeked = limiter.peek("alice", AcquireOptions::default()).await.expect("an answer");
        assert!(peeked.is_allowed() && peeked.source() == DecisionSource::NoLimit);
    }
}
