//! Limits that apply only to some keys, in Redis. `differential` compares their decisions with those of memory.

use std::time::Duration;

use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Costs, Detail, Gcra, Limit, Limiter as _, Quota, Redis, RedisServer};

use crate::cluster_server::Cluster;
use crate::helpers::{LONG_DEADLINE, acquire, hold};
use crate::server::Server;

/// (user, whether the call writes).
type Call = (u64, bool);

const READ: Call = (7, false);
const WRITE: Call = (7, true);

fn limiter(server: RedisServer) -> Redis<Call> {
    let quota = Quota::per_day(9);
    let limits = (
        Limit::new("user", Gcra::new(quota)).keyed_by_some(|&(user, _): &Call| (user > 0).then_some(user)),
        Limit::new("writes", Gcra::new(quota)).keyed_by(|_: &Call| ()).only_if(|call: &Call| call.1),
    );
    Redis::builder(server, "calls", limits).deadline(LONG_DEADLINE).build().expect("limits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_that_does_not_apply_has_no_key_in_redis() {
    let server = Server::start();
    let limiter = limiter(server.open());
    let options = AcquireOptions::default().detail(Detail::All);
    let decision = acquire(&limiter, &READ, options).await.expect("an answer").decision;
    assert_eq!((decision.limits().len(), decision.remaining()), (1, Some(8)));
    let held = hold(&limiter, &READ, 2).await;
    assert_eq!(limiter.peek(&READ, options).await.expect("an answer").remaining(), Some(6));
    assert_eq!(server.keys(), ["ratelimit:calls:user:bucket2:7"]);
    held.settle(1).await.expect("done");
    let decision = acquire(&limiter, &WRITE, options).await.expect("an answer").decision;
    let remaining: Vec<_> = decision.limits().iter().map(|limit| (limit.name(), limit.remaining())).collect();
    assert_eq!(remaining, [("user", 6), ("writes", 8)]);
    let decision = acquire(&limiter, &(0, true), options).await.expect("an answer").decision;
    assert_eq!((decision.limits().len(), decision.remaining()), (1, Some(7)));
    // The reset concerns the limits of its key only.
    limiter.reset(&READ).await.expect("done");
    assert_eq!(server.keys(), ["ratelimit:calls:writes:bucket2:"]);
    for error in [
        limiter.block("writes", &READ, Duration::from_secs(1)).await.expect_err("the limit does not apply"),
        limiter.set_usage("writes", &READ, 1).await.expect_err("the limit does not apply"),
        limiter.redis_key("writes", &READ).map(drop).expect_err("the limit does not apply"),
    ] {
        assert!(error.is_config() && error.to_string().contains("\"writes\" does not apply"), "{error}");
    }
    limiter.block("writes", &WRITE, Duration::from_secs(60)).await.expect("done");
    assert!(acquire(&limiter, &WRITE, options).await.expect("an answer").decision.is_blocked());
    assert!(acquire(&limiter, &READ, options).await.expect("an answer").decision.is_allowed());
}

/// No server is asked.
#[tokio::test]
async fn request_to_which_no_limit_applies_is_exempt_also_without_redis() {
    let limiter = limiter(RedisServer::open("redis://127.0.0.1:1").expect("an address"));
    let call = (0, false);
    assert!(acquire(&limiter, &call, AcquireOptions::cost(1000)).await.expect("no call").decision.is_exempt());
    assert!(limiter.peek(&call, AcquireOptions::default()).await.expect("no call").is_exempt());
    hold(&limiter, &call, 5).await.settle(9).await.expect("no call");
    limiter.reset(&call).await.expect("no call");
    let tokens = Limit::new("tokens", Gcra::new(Quota::per_second(9))).cost_of("tokens").keyed_by(|_: &Call| ());
    let server = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let in_units = Redis::new(server, "tokens", tokens.only_if(|call: &Call| call.1));
    let settled = hold(&in_units, &call, 5).await.settle(Costs::from(5).add("tokens", 3)).await;
    settled.expect("a unit of the limiter");
    assert!(acquire(&limiter, &READ, AcquireOptions::default()).await.is_err());
}

/// Keys of calls that meet other subsets of the limits share the cluster slot of the limiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_every_subset_share_a_cluster_slot() {
    let cluster = Cluster::start();
    let limiter = limiter(cluster.open());
    for call in [READ, WRITE, (0, true), (0, false)] {
        let decision = acquire(&limiter, &call, AcquireOptions::default()).await.expect("an answer").decision;
        assert!(decision.is_allowed());
    }
    assert_eq!(limiter.redis_key("user", &READ).expect("a key"), "ratelimit:{calls}:user:bucket2:7");
    assert_eq!(limiter.redis_key("writes", &WRITE).expect("a key"), "ratelimit:{calls}:writes:bucket2:");
}

#[test]
fn leases_and_limits_on_the_whole_key_beside_a_condition_are_errors() {
    let server = || RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let writes =
        || Limit::new("writes", Gcra::new(Quota::per_second(9))).keyed_by(|_: &Call| ()).only_if(|call: &Call| call.1);
    let leased = Redis::builder(server(), "calls", writes()).lease(Lease::new(Duration::from_secs(1))).build();
    let error = leased.map(drop).expect_err("leases need every limit to apply").to_string();
    assert!(error.contains("the limit \"writes\" applies only to some requests"), "{error}");
    let classes = Limit::new("classes", Gcra::new(Quota::per_second(9))).keyed_by(|_: &Call| ());
    let classes = classes.keep_free_by(|call: &Call| u64::from(call.1));
    let leased = Redis::builder(server(), "calls", classes).lease(Lease::new(Duration::from_secs(1))).build();
    let error = leased.map(drop).expect_err("leases know no classes").to_string();
    assert!(error.contains("the limit \"classes\" keeps units free from some requests"), "{error}");
    let whole = Redis::builder(server(), "calls", (Limit::new("calls", Gcra::new(Quota::per_second(9))), writes()));
    let error = whole.build().map(drop).expect_err("a limit on the whole key").to_string();
    assert!(error.contains("limit \"calls\": it counts by the whole key"), "{error}");
}
