//! Redis addresses, and the errors of servers that can't be used.

use std::error::Error as _;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{pause, sleep};
use tower_ratelimit::{
    AcquireOptions, DynLimit, Error, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota, Redis, RedisServer,
    SlidingLog,
};

use crate::cluster_server::Cluster;
use crate::helpers::{LONG_DEADLINE, is_allowed, redis_limiter};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;

const QUOTA: Quota = Quota::per_hour(100);

fn at(address: &str) -> Redis<str> {
    redis_limiter(RedisServer::open(address).expect("an address"), "api", Gcra::new(QUOTA))
}

async fn check_works(address: &str) {
    let limiter = at(address);
    limiter.health_check().await.unwrap_or_else(|error| panic!("{address}: {error:?}"));
    assert!(is_allowed(&limiter, "alice").await, "{address}");
}

#[tokio::test]
async fn tcp_address_works() {
    let server = Server::start();
    check_works(&format!("redis://127.0.0.1:{}", server.port)).await;
    check_works(&format!("redis://localhost:{}/", server.port)).await;
    assert_eq!(server.keys().len(), 1);
}

#[tokio::test]
async fn unix_socket_address_works() {
    let server = Server::with(&["--unixsocket", "redis.sock"]);
    check_works(&format!("unix://{}", server.folder.file("redis.sock"))).await;
    assert_eq!(server.keys().len(), 1);
}

#[tokio::test]
async fn user_and_password_are_sent() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~ratelimit:*", "+@all"]);
    check_works(&format!("redis://app:secret@127.0.0.1:{}", server.port)).await;
    server.command(&["CONFIG", "SET", "requirepass", "other secret"]);
    check_works(&format!("redis://:other%20secret@127.0.0.1:{}", server.port)).await;
}

/// The commands that `docs/redis.md` lists for a single Redis.
const RIGHTS: [&str; 16] = [
    "select", "evalsha", "eval", "time", "get", "mget", "exists", "set", "psetex", "del", "pexpire", "lrange",
    "lindex", "lset", "ltrim", "rpush",
];

/// A user with these keys and all documented commands except some.
fn user_lacking(server: &Server, lacks: &[&str], keys: &str) -> RedisServer {
    let rights = RIGHTS.into_iter().filter(|right| !lacks.contains(right)).map(|right| format!("+{right}"));
    let rights: Vec<_> = rights.collect();
    let mut user = vec!["ACL", "SETUSER", "app", "reset", "on", ">secret", keys];
    user.extend(rights.iter().map(String::as_str));
    assert!(server.command(&user).starts_with("+OK"));
    RedisServer::open(&format!("redis://app:secret@127.0.0.1:{}/2", server.port)).expect("an address")
}

/// Calls every kind of operation and returns the first error.
async fn call_everything(server: &RedisServer, flush: impl Fn()) -> Result<(), Error> {
    let bucket = redis_limiter::<u64>(server.clone(), "api", Gcra::new(QUOTA));
    let log = redis_limiter::<u64>(server.clone(), "log", SlidingLog::new(QUOTA));
    bucket.health_check().await?;
    flush();
    let acquisitions = (0..3).map(|key| acquire_owned(&bucket, key));
    futures_util::future::try_join_all(acquisitions).await?;
    for key in [0, 0, 1] {
        acquire_owned(&bucket, key).await?;
        acquire_owned(&log, key).await?;
    }
    // A request that must wait for more hits than the script reads first, and a change that removes hits.
    for cost in [1, 1, 1, QUOTA.limit()] {
        let _ = crate::helpers::acquire(&log, &0, AcquireOptions::cost(cost)).await?;
    }
    log.set_usage("default", &0, 1).await?;
    bucket.block("default", &0, std::time::Duration::from_secs(9)).await?;
    // A new key, not on the fast path.
    bucket.set_usage("default", &9, 1).await?;
    bucket.block("default", &0, Duration::ZERO).await?;
    bucket.reset(&0).await
}

async fn acquire_owned(limiter: &Redis<u64>, key: u64) -> Result<(), Error> {
    crate::helpers::acquire(limiter, &key, AcquireOptions::default()).await.map(|_| ())
}

#[tokio::test]
async fn documented_permissions_suffice() {
    let server = Server::start();
    let address = user_lacking(&server, &[], "~ratelimit:*");
    call_everything(&address, || drop(server.command(&["SCRIPT", "FLUSH"])))
        .await
        .expect("the documented permissions suffice");
}

#[tokio::test]
async fn missing_permission_is_named_in_the_error() {
    let server = Server::start();
    for right in RIGHTS {
        let address = user_lacking(&server, &[right], "~ratelimit:*");
        server.command(&["FLUSHALL"]);
        server.command(&["SCRIPT", "FLUSH"]);
        let flush = || drop(server.command(&["SCRIPT", "FLUSH"]));
        let result = call_everything(&address, flush).await;
        if right == "get" {
            // Without GET the script reads by MGET.
            result.expect("the script has a slower fallback");
            continue;
        }
        let error = result.expect_err(right);
        assert!(error.is_unavailable());
        let (_, grants) =
            error.to_string().split_once("; grant ").map(|(a, b)| (a.to_owned(), b.to_owned())).expect(right);
        assert!(grants.contains(&right.to_uppercase().replace('|', " ")), "{right}: {error:?}");
    }
    let error = call_everything(&user_lacking(&server, &[], "~other:*"), || ()).await.expect_err("no keys");
    assert_error_contains(&error, "grant all keys that begin with the limiter's prefix");
    let beyond = format!("redis://127.0.0.1:{}/99", server.port);
    assert_error_contains(
        &at(&beyond).health_check().await.expect_err("no such database"),
        "the database of the address does not exist",
    );
}

/// A user (ACL) who may do less from time to time. Each call is decided as in memory, or its error names a command that is
/// missing. Such an answer is no outage, so the first call with all permissions is decided.
#[tokio::test]
async fn calls_with_random_permissions_agree_with_memory_or_name_what_is_missing() {
    let (server, clock, mut random) = (Server::start(), ManualClock::new(), Random::new(3));
    let limits = || {
        (
            Limit::new("log", SlidingLog::new(Quota::per_minute(6))).keyed_by(|key: &u64| *key),
            Limit::new("all", Gcra::new(Quota::per_minute(20))).keyed_by(|_: &u64| ()),
        )
    };
    let redis = Redis::builder(user_lacking(&server, &[], "~ratelimit:*"), "api", limits()).deadline(LONG_DEADLINE);
    let redis: Redis<u64> = redis.clock_for_tests(clock.clone()).build().expect("limits");
    let (log, all) = limits();
    let memory = Memory::builder(vec![DynLimit::new(log), DynLimit::new(all)]).clock(clock.clone());
    let memory = memory.build().expect("limits");
    let (mut decided, mut refused) = (0, 0);
    for _ in 0..60 {
        let lacks: Vec<_> = RIGHTS.into_iter().filter(|_| random.below(12) == 0).collect();
        user_lacking(&server, &lacks, "~ratelimit:*");
        for _ in 0..random.between(1, 12) {
            clock.advance(Duration::from_millis(random.below(9_000)));
            let (key, operation) = (random.below(3), random.below(12));
            let options = AcquireOptions::cost(random.below(4));
            let done = match operation {
                0 => redis.reset(&key).await,
                1 => redis.set_usage("log", &key, options.cost).await,
                2 => redis.block("all", &key, Duration::from_secs(1)).await,
                _ => match redis.acquire(&key, options).await {
                    Ok(outcome) => {
                        assert_eq!(outcome.decision, memory.check(&key, options), "{lacks:?}");
                        decided += 1;
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = done {
                let text = error.to_string();
                // The text lists all commands of the script, and SELECT by itself.
                let names_select = text.contains("the user (ACL) may not run SELECT");
                assert!(names_select || text.contains("may not run a command"), "{lacks:?}: {text}");
                assert!(lacks.iter().any(|right| (*right == "select") == names_select), "{lacks:?}: {text}");
                refused += 1;
                // A script that a missing permission has stopped may have written a part.
                server.command(&["FLUSHDB"]);
                server.commands(&[&["SELECT", "2"], &["FLUSHDB"]]);
                for key in 0..3 {
                    memory.block("all", &key, Duration::ZERO).await.expect("done");
                    memory.reset(&key).await.expect("done");
                }
                continue;
            }
            match operation {
                0 => memory.reset(&key).await,
                1 => memory.set_usage("log", &key, options.cost).await,
                _ => memory.block("all", &key, Duration::from_secs(1)).await,
            }
            .expect("done");
        }
    }
    assert!(decided > 100 && refused > 30, "{decided} decided, {refused} refused");
}

#[tokio::test]
async fn database_number_selects_the_database() {
    let server = Server::start();
    check_works(&format!("redis://127.0.0.1:{}/3", server.port)).await;
    assert!(server.keys().is_empty());
    assert!(server.commands(&[&["SELECT", "3"], &["KEYS", "*"]]).contains(":alice"));
}

fn assert_error_contains(error: &Error, words: &str) {
    assert!(error.to_string().contains(words), "{error:?}");
}

#[test]
fn invalid_address_is_an_error_without_its_password() {
    for wrong in [
        "",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://:hunter2@[",
        "redis://x:hunter2@127.0.0.1:port",
        "redis://127.0.0.1/x",
    ] {
        let Err(error) = RedisServer::open(wrong) else { panic!("{wrong} was accepted") };
        assert!(error.is_config());
        assert_error_contains(&error, "redis://[user:password@]host[:port][/database]");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let server = RedisServer::open("redis://app:hunter2@127.0.0.1").expect("an address");
    let limiter = Redis::<str>::new(server.clone(), "api", Gcra::new(QUOTA));
    assert!(!format!("{server:?} {limiter:?}").contains("hunter2"));
}

#[tokio::test]
async fn missing_server_is_an_error_immediately() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let limiter = at(&format!("redis://127.0.0.1:{port}"));
    // Not the error of the time-out.
    let error = limiter.health_check().await.expect_err("no server");
    assert!(error.is_unavailable());
    assert_error_contains(&error, &format!("(127.0.0.1:{port})"));
    assert_error_contains(&error, "connection was refused");
    assert!(error.source().expect("a cause").to_string().contains("refused"), "{error:?}");
    // A decision returns the same error.
    let error = crate::helpers::acquire(&limiter, "alice", AcquireOptions::default()).await.expect_err("none");
    assert!(error.is_unavailable() && error.source().expect("a cause").to_string().contains("refused"), "{error:?}");
}

/// Each error names its cause and the address, in the health check and in the first decision.
#[tokio::test]
async fn unusable_servers_are_named_in_the_error() {
    let closing = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closing_port = closing.local_addr().expect("its address").port();
    std::thread::spawn(move || closing.incoming().for_each(drop));
    let with_password = Server::with(&["--requirepass", "secret"]);
    let full = Server::start();
    full.command(&["CONFIG", "SET", "maxclients", "1"]);
    let _only = std::net::TcpStream::connect(("127.0.0.1", full.port)).expect("a connection");
    let plain = Server::start();
    for (scheme, port, causes) in [
        ("redis", closing_port, &["closed the connection"][..]),
        ("redis", with_password.port, &["requires a password"]),
        ("redis", full.port, &["`maxclients`"]),
        ("rediss", plain.port, &["does not speak TLS", "closed the connection", "expects TLS"]),
    ] {
        let limiter = at(&format!("{scheme}://127.0.0.1:{port}"));
        if scheme == "rediss" {
            // Some servers wait for the rest of a command.
            pause();
        }
        let checked = limiter.health_check().await.expect_err("no usable server");
        let decided = crate::helpers::acquire(&limiter, "alice", AcquireOptions::default()).await;
        for error in [checked, decided.expect_err("no usable server")] {
            let text = error.to_string();
            assert!(causes.iter().any(|cause| text.contains(cause)), "{scheme} {causes:?}: {error:?}");
            assert!(error.is_unavailable() && text.contains(&format!("127.0.0.1:{port}")), "{scheme}: {error:?}");
        }
    }
}

#[tokio::test]
async fn wrong_password_is_an_error() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"]);
    for user in ["app:wrong@", "nobody:secret@", ":wrong@"] {
        if user == ":wrong@" {
            server.command(&["CONFIG", "SET", "requirepass", "other"]);
        }
        let error = at(&format!("redis://{user}127.0.0.1:{}", server.port)).health_check().await.expect_err("wrong");
        assert!(error.is_unavailable());
        assert_error_contains(&error, "refused the user's name or password");
        assert!(!format!("{error:?}").contains("wrong@"));
    }
    let error = at(&server.address()).health_check().await.expect_err("none given");
    assert_error_contains(&error, "password");
}

#[tokio::test]
async fn refused_scripts_and_writes_are_errors() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-@scripting"]);
    let error =
        at(&format!("redis://app:secret@127.0.0.1:{}", server.port)).health_check().await.expect_err("no scripts");
    assert_error_contains(&error, "EVALSHA");
    let in_flight = redis_limiter::<str>(server.open(), "api", InFlight::new(3));
    in_flight.health_check().await.expect("a working Redis");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_error_contains(&at(&server.address()).health_check().await.expect_err("no writes"), "replica");
    assert_error_contains(&in_flight.health_check().await.expect_err("no writes"), "replica");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_error_contains(&at(&server.address()).health_check().await.expect_err("no writes"), "maxmemory");
    assert_error_contains(&in_flight.health_check().await.expect_err("no writes"), "maxmemory");
}

#[tokio::test]
async fn silent_server_is_an_error_within_the_connect_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let address = format!("redis://{address}");
    let default_deadline = |server| Redis::<str>::new(server, "api", Gcra::new(QUOTA));
    let single = default_deadline(RedisServer::open(&address).expect("an address"));
    let error = single.health_check().await.expect_err("a silent server");
    assert!(error.is_unavailable());
    assert_error_contains(&error, "within 2s");
    let cluster = default_deadline(RedisServer::cluster([address]).expect("an address"));
    let error = cluster.health_check().await.expect_err("a silent node");
    assert_error_contains(&error, "a cluster node did not respond in time; check that the server is reachable");
}

/// Connecting takes longer than the two seconds that limiters with a shorter deadline wait.
#[tokio::test]
async fn slow_connection_opens_within_a_long_deadline() {
    let (server, cluster) = (Server::start(), Cluster::masters(1, |_| Server::node_with(&[])));
    let proxies = [Proxy::before(server.socket()), Proxy::before(cluster.nodes[0].socket())];
    let addresses = proxies.each_ref().map(|proxy| format!("redis://{}", proxy.address));
    let servers = [RedisServer::open(&addresses[0]), RedisServer::cluster([&addresses[1]])];
    let mut decisions = JoinSet::new();
    for (proxy, server) in proxies.iter().zip(servers) {
        proxy.hold(true);
        let limiter = redis_limiter::<str>(server.expect("an address"), "api", Gcra::new(QUOTA));
        decisions.spawn(async move {
            limiter.health_check().await.expect("a slow server");
        });
    }
    sleep(Duration::from_secs(3)).await;
    for proxy in &proxies {
        proxy.hold(false);
    }
    decisions.join_all().await;
}

#[test]
fn missing_runtime_is_an_error() {
    let limiter = at("redis://127.0.0.1:1");
    for error in [
        futures_util::FutureExt::now_or_never(limiter.health_check()).expect("a ready error").expect_err("no runtime"),
        tower_ratelimit::Limiter::acquire(&limiter, "alice", AcquireOptions::default())
            .try_ready()
            .map_err(drop)
            .expect("without a runtime the acquisition is ready")
            .expect_err("no runtime"),
    ] {
        assert!(error.is_config());
        assert_error_contains(&error, "tokio runtime");
    }
}

#[tokio::test]
async fn health_check_loads_the_script_and_leaves_no_key() {
    let server = Server::start();
    let limiter = at(&server.address());
    limiter.health_check().await.expect("a working Redis");
    assert_eq!(server.keys(), Vec::<String>::new());
    let evals = || server.command(&["INFO", "commandstats"]).matches("cmdstat_eval:").count();
    let before = evals();
    assert!(is_allowed(&limiter, "alice").await);
    assert_eq!(evals(), before, "no script was sent again");
}
