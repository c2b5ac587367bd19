//! Faults of Redis under load: every decision is answered within its deadline, and service resumes by itself.
//!
//! A failed decision is an `unavailable` error. Each test prints one line of a table (`--nocapture`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::limiter::{FailOpen, Fallback};
use tower_ratelimit::{
    AcquireOptions, DecisionSource, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota, Redis, RedisServer,
};

use crate::helpers::{AMPLE, LONG_DEADLINE, acquire, every_algorithm, is_allowed, redis_limiter};
use crate::process::wait_until;
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;

/// A call of a fault fails after this time. Whether calls are answered in this time depends on the machine.
const DEADLINE: Duration = Duration::from_millis(200);
const TASKS: usize = 64;

/// One decision under load.
struct Sample {
    began: Instant,
    took: Duration,
    answered: bool,
}

/// Tasks that call one limiter until they are stopped.
struct Load {
    goes_on: Arc<AtomicBool>,
    /// The number of questions whether decisions succeed, and the last one that a later decision has answered.
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    tasks: JoinSet<Vec<Sample>>,
}

fn limiter(server: RedisServer) -> Redis<str> {
    Redis::builder(server, "api", Gcra::new(AMPLE)).deadline(DEADLINE).build().expect("limits")
}

impl Load {
    fn on(limiter: &Redis<str>) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let [asked, answered, failed] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (limiter, goes_on) = (limiter.clone(), Arc::clone(&goes_on));
            let [asked, answered, failed] = [&asked, &answered, &failed].map(Arc::clone);
            tasks.spawn(async move {
                let key = format!("key {}", task % 10);
                let mut samples = Vec::new();
                while goes_on.load(Ordering::SeqCst) {
                    let (began, question) = (Instant::now(), asked.load(Ordering::SeqCst));
                    let result = acquire(&limiter, key.as_str(), AcquireOptions::default()).await;
                    let took = began.elapsed();
                    if let Err(error) = &result {
                        assert!(error.is_unavailable(), "{error:?}");
                        failed.fetch_add(1, Ordering::SeqCst);
                    } else {
                        answered.fetch_max(question, Ordering::SeqCst);
                    }
                    samples.push(Sample { began, took, answered: result.is_ok() });
                    sleep(Duration::from_millis(20)).await;
                }
                samples
            });
        }
        Self { goes_on, asked, answered, failed, tasks }
    }

    /// Waits until a decision succeeds that starts from now on.
    async fn until_answered(&self, what: &str) {
        let question = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        until(what, || self.answered.load(Ordering::SeqCst) >= question).await;
    }

    fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    /// Waits until the fault has let another decision fail.
    async fn until_failed(&self) {
        let before = self.failed();
        until("a decision fails", || self.failed() > before).await;
    }

    /// After the end of the fault: waits until decisions succeed again, prints a summary, and returns how many failed.
    async fn report(self, fault: &str) -> usize {
        let over = Instant::now();
        self.until_answered(fault).await;
        self.goes_on.store(false, Ordering::SeqCst);
        let samples: Vec<_> = self.tasks.join_all().await.into_iter().flatten().collect();
        let resumed = samples.iter().filter(|sample| sample.answered && sample.began >= over);
        let resumed = resumed.map(|sample| sample.began + sample.took).min().expect("service resumed");
        let (sent, failed) = (samples.len(), samples.iter().filter(|sample| !sample.answered).count());
        let slowest = samples.iter().map(|sample| sample.took).max().expect("a load");
        println!(
            "| {fault:<40} | sent {sent:>6} | answered {:>6} | failed {failed:>6} | slowest {slowest:>8.1?} | recovered \
             after {:>8.1?} |",
            sent - failed,
            resumed - over
        );
        failed
    }
}

/// Waits for a state.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG_DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn loaded(server: &Server) -> Load {
    loaded_by(&limiter(server.open())).await
}

async fn loaded_by(limiter: &Redis<str>) -> Load {
    limiter.health_check().await.expect("a working Redis");
    let load = Load::on(limiter);
    load.until_answered("a decision succeeds").await;
    load
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_causes_no_error() {
    let server = Server::start();
    let load = loaded_by(&redis_limiter(server.open(), "api", Gcra::new(AMPLE))).await;
    for _ in 0..10 {
        server.command(&["SCRIPT", "FLUSH"]);
        sleep(Duration::from_millis(20)).await;
    }
    let failed = load.report("SCRIPT FLUSH, ten times").await;
    assert_eq!(failed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_used_again() {
    let mut server = Server::start();
    let load = loaded(&server).await;
    server.kill();
    server.restart();
    load.report("restart").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_is_used_again() {
    let mut server = Server::start();
    let load = loaded(&server).await;
    server.kill();
    load.until_failed().await;
    server.restart();
    load.report("kill -9, back after failures").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_fails_by_deadline() {
    let server = Server::start();
    let load = loaded(&server).await;
    server.signal("-STOP");
    load.until_failed().await;
    server.signal("-CONT");
    load.report("kill -STOP, -CONT after failures").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_server_fails_by_deadline() {
    let server = Server::start();
    let load = loaded(&server).await;
    while load.failed() == 0 {
        server.pause(Duration::from_millis(800));
        sleep(Duration::from_millis(800)).await;
    }
    load.report("CLIENT PAUSE 0.8 s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_out_of_memory_recovers() {
    let server = Server::start();
    let load = loaded(&server).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    load.until_failed().await;
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    load.report("maxmemory reached (OOM)").await;
}

fn dead_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_unavailable_until_it_is_a_master() {
    let server = Server::start();
    let load = loaded(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", &dead_port()]);
    load.until_failed().await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    load.report("REPLICAOF a dead port (READONLY)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_without_its_master_is_unavailable() {
    let server = Server::with(&["--replica-serve-stale-data", "no"]);
    let load = loaded(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", &dead_port()]);
    load.until_failed().await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    load.report("REPLICAOF a dead port (MASTERDOWN)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_password_is_unavailable_until_restored() {
    let server = Server::start();
    let load = loaded(&server).await;
    server.commands(&[&["CONFIG", "SET", "requirepass", "other"], &["CLIENT", "KILL", "TYPE", "normal"]]);
    load.until_failed().await;
    server.commands(&[&["AUTH", "other"], &["CONFIG", "SET", "requirepass", ""]]);
    load.report("wrong password (requirepass)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permissions_are_unavailable_until_restored() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"]);
    let limiter = limiter(RedisServer::open(&format!("redis://app:secret@{}", server.socket())).expect("an address"));
    limiter.health_check().await.expect("a working Redis");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(100)).await;
    server.command(&["ACL", "SETUSER", "app", "-@scripting"]);
    load.until_failed().await;
    server.command(&["ACL", "SETUSER", "app", "+@all"]);
    load.report("ACL without scripting (NOPERM)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_foreign_script_is_unavailable_until_killed() {
    let server = Server::start();
    let load = loaded(&server).await;
    server.command(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
    std::thread::scope(|scope| {
        scope.spawn(|| server.command(&["EVAL", "while true do end", "0"]));
        wait_until("decisions fail", || load.failed() > 0);
        server.command(&["SCRIPT", "KILL"]);
    });
    load.report("an endless script (BUSY)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_server_is_unavailable_until_loaded() {
    let server = Server::with(&["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"]);
    server.command(&["DEBUG", "POPULATE", "2000", "key", "100"]);
    let load = loaded(&server).await;
    server.command(&["CONFIG", "SET", "key-load-delay", "300"]);
    std::thread::scope(|scope| {
        scope.spawn(|| server.command(&["DEBUG", "RELOAD"]));
    });
    load.report("loading its data (LOADING)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_a_reply_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let behind = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let load = loaded_by(&redis_limiter(behind, "api", Gcra::new(AMPLE))).await;
    for _ in 0..3 {
        proxy.cut_next_reply();
        load.until_failed().await;
        load.until_answered("a decision succeeds").await;
    }
    let failed = load.report("cut in the middle of a reply, 3 times").await;
    assert!(failed < 3 * 3 * TASKS, "{failed}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Circuit breaker
// ---------------------------------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_breaker_answers_immediately_and_detects_recovery() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let limiter = limiter(RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address"));
    limiter.health_check().await.expect("a working Redis");
    let load = Load::on(&limiter);
    sleep(Duration::from_millis(100)).await;
    proxy.shut(true);
    // The breaker is open, so calls fail immediately, but for one in a while.
    let is_immediate = || matches!(limiter.acquire("alice", AcquireOptions::default()).try_ready(), Ok(Err(error)) if error.is_unavailable());
    until("the breaker opens", is_immediate).await;
    let (began, immediate) = (Instant::now(), (0..1000).filter(|_| is_immediate()).count());
    assert!(immediate + usize::try_from(began.elapsed().as_millis() / 100).expect("small") + 1 >= 1000, "{immediate}");
    let (before, began) = (proxy.connections(), Instant::now());
    sleep(Duration::from_secs(1)).await;
    let (probes, most) = (proxy.connections() - before, began.elapsed().as_millis() / 100 + 2);
    assert!(u128::try_from(probes).expect("small") <= most, "{probes} connections during the outage");
    assert!(probes > 0, "a decision tests the server");
    proxy.shut(false);
    let failed = load.report("all connections refused for 1.3 s").await;
    assert!(failed > 0);
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
        let deadline = Instant::now() + LONG_DEADLINE;
        while acquire(&limiter, "alice", AcquireOptions::default()).await.is_err() {
            assert!(Instant::now() < deadline, "the server responds");
        }
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
    let second = Memory::new(FixedWindow::new(Quota::per_hour(2)));
    let limiter = Fallback::new(limiter(server.open()), second);
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
    let deadline = Instant::now() + LONG_DEADLINE;
    while acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision.source()
        != DecisionSource::Store
    {
        assert!(Instant::now() < deadline, "the fallback does not return to Redis");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn fail_open_allows_while_redis_is_unavailable_and_is_the_source() {
    let mut server = Server::start();
    let limiter = FailOpen::new(limiter(server.open()));
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
