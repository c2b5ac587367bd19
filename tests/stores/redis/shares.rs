//! The theorem of guaranteed shares in Redis, with lost replies, closed connections, expired holds, ids and evicted keys.
//!
//! Without surcharges and resets, the common limit allows each request that its share allows. The assertion is the
//! invariant: the usage above what borrowers may use is at most the usage of all shares.

use std::time::Duration;

use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, Gcra, Limit, LimitStatus, Limiter, ManualClock, Memory, Quota, Redis,
    RedisServer, SlidingLog, SlidingWindow,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;

const TENANTS: u64 = 3;
const BURST: u64 = 4;

/// What a trace has seen.
#[derive(Debug, Default)]
struct Seen {
    borrowed: u64,
    within: u64,
    faults: u64,
    failed: u64,
    evicted: u64,
}

/// What a trace has held and not settled.
enum Open {
    Guard(Held),
    Id(u64, String),
}

/// A tenant without a share is 9.
fn has_share(tenant: u64) -> Option<u64> {
    (tenant < TENANTS).then_some(tenant)
}

struct Trace<'a> {
    server: &'a Server,
    proxy: Proxy,
    clock: ManualClock,
    /// Through the proxy.
    limiter: Redis<u64>,
    direct: Redis<u64>,
}

impl<'a> Trace<'a> {
    fn new(
        server: &'a Server,
        name: &str,
        share: &(impl LuaAlgorithm + Clone),
        all: &(impl LuaAlgorithm + Clone),
    ) -> Self {
        let (proxy, clock) = (Proxy::before(server.socket()), ManualClock::new());
        let build = |server| {
            let limits = vec![
                RedisLimit::new(
                    Limit::new("share", share.clone())
                        .keyed_by_some(|tenant: &u64| has_share(*tenant))
                        .guarantee(TENANTS),
                ),
                RedisLimit::new(Limit::new("all", all.clone()).keyed_by(|_: &u64| ())),
            ];
            let builder = Redis::builder(server, name, limits).clock_for_tests(clock.clone());
            builder.hold_expiry(ONE_DAY).deadline(LONG_DEADLINE).build().expect("limits")
        };
        let proxied = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let (limiter, direct) = (build(proxied), build(server.open()));
        Self { server, proxy, clock: clock.clone(), limiter, direct }
    }

    /// Half of the holds have ids instead of guards, and some of them expire.
    async fn run(&self, seed: u64) -> Seen {
        let (mut random, mut seen, mut held) = (Random(seed), Seen::default(), Vec::<(Open, u64)>::new());
        let mut highest = 0;
        for step in 0..900 {
            let longest = random.choose(&[20_000, 20_000, 1_500_000]);
            self.clock.advance(Duration::from_micros(random.below(longest)));
            match random.below(40) {
                0 => {
                    self.proxy.cut_next_reply();
                    seen.faults += 1;
                }
                1 => {
                    self.proxy.shut(true);
                    self.proxy.shut(false);
                    seen.faults += 1;
                }
                // An eviction of the common limit, whose usage is forgotten. Its holds are forgotten with it.
                2 if held.is_empty() => {
                    let key = self.server.keys().into_iter().find(|key| key.contains(":all:"));
                    seen.evicted += key.map_or(0, |key| u64::try_from(self.server.number(&["DEL", &key])).unwrap_or(0));
                }
                3..=16 if !held.is_empty() => {
                    let (guard, cost) = held.swap_remove(random.index(held.len()));
                    let actual = random.below(cost + 1);
                    match guard {
                        // A settlement whose reply is lost is sent again.
                        Open::Guard(guard) => drop(guard.settle(actual).await),
                        Open::Id(tenant, id) => {
                            while let Err(error) = self.limiter.settle(&tenant, id.as_str(), actual).await {
                                if error.is_unknown_id() {
                                    break;
                                }
                                tokio::time::sleep(Duration::from_millis(20)).await;
                            }
                        }
                    }
                }
                _ => {
                    let other = random.below(TENANTS);
                    let tenant = random.choose(&[0, 0, 0, 0, other, other, 9]);
                    let cost = 1 + random.below(3);
                    let options = AcquireOptions::cost(cost).detail(Detail::All);
                    let is_hold = random.below(3) == 0;
                    let id = (is_hold && random.below(2) == 0).then(|| format!("{step}"));
                    let options = if is_hold { options.hold() } else { options };
                    let options = match &id {
                        Some(id) => options.id(id).expires_in(Duration::from_millis([500, 60_000][random.index(2)])),
                        None => options,
                    };
                    match acquire(&self.limiter, &tenant, options).await {
                        Ok(Outcome { decision, held: guard, .. }) => {
                            let borrows =
                                has_share(tenant).is_none() || decision.limits().iter().any(LimitStatus::is_borrowing);
                            assert!(borrows || decision.is_allowed(), "{seed} {step} {tenant} {cost} {decision:?}");
                            let open = guard.map(Open::Guard);
                            let open = open.or(id.filter(|_| decision.is_allowed()).map(|id| Open::Id(tenant, id)));
                            held.extend(open.map(|open| (open, cost)));
                            *if borrows { &mut seen.borrowed } else { &mut seen.within } +=
                                u64::from(decision.is_allowed());
                        }
                        Err(error) => {
                            assert!(error.is_unavailable(), "{error}");
                            seen.failed += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            }
            let above = (TENANTS * BURST).saturating_sub(self.free(0, "all").await);
            let mut shares = 0;
            for tenant in 0..TENANTS {
                shares += BURST - self.free(tenant, "share").await;
            }
            // Usage is rounded up to units.
            assert!(above <= shares + 1, "{seed} {step}: {above} above the kept units, {shares} in shares");
            highest = highest.max(above);
        }
        assert!(highest > 2, "{seed}: {highest}");
        seen
    }

    /// A cost of 0 is within a share: the number includes the kept units.
    async fn free(&self, tenant: u64, limit: &str) -> u64 {
        let options = AcquireOptions::cost(0).detail(Detail::All);
        let decision = self.direct.peek(&tenant, options).await.expect("an answer");
        decision.limits().iter().find(|status| status.name() == limit).expect("the limit").remaining()
    }
}

async fn check(server: &Server, name: &str, share: &(impl LuaAlgorithm + Clone), all: &(impl LuaAlgorithm + Clone)) {
    let seen = Trace::new(server, name, share, all).run(1).await;
    println!("{name}: {seen:?}");
    assert!(seen.borrowed > 15 && seen.within > 50 && seen.faults > 20 && seen.failed > 3, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_limit_in_redis_allows_what_a_share_allows_with_faults() {
    let server = Server::start();
    let quota = |limit| Quota::new(limit, Duration::from_secs(2));
    check(&server, "buckets", &Gcra::new(quota(4)).burst(BURST), &Gcra::new(quota(12)).burst(18)).await;
    check(&server, "windows", &SlidingWindow::new(quota(BURST)), &SlidingWindow::new(quota(18))).await;
    check(&server, "logs", &SlidingLog::new(quota(BURST)), &SlidingLog::new(quota(18))).await;
}

/// Without a limit from which to borrow, a share bounds its requests, in memory and in Redis.
#[tokio::test]
async fn share_bounds_requests_to_which_no_common_limit_applies() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let day = |limit, burst| Gcra::new(Quota::per_day(limit)).burst(burst);
    let share = || Limit::new("share", day(1, BURST)).keyed_by(|tenant: &u64| tenant % 10).guarantee(TENANTS);
    let all = || Limit::new("all", day(TENANTS, 18)).keyed_by(|_: &u64| ()).only_if(|tenant: &u64| *tenant < 10);
    let trial = || Limit::new("trial", day(TENANTS, 18)).keyed_by(|_: &u64| ()).shadow();
    let redis = Redis::builder(server.open(), "alone", (share(), all(), trial())).deadline(LONG_DEADLINE);
    let redis: Redis<u64> = redis.clock_for_tests(clock.clone()).build().expect("limits");
    let list = vec![DynLimit::new(share()), DynLimit::new(all()), DynLimit::new(trial())];
    let memory: Memory<u64, _> = Memory::builder(list).clock(clock.clone()).build().expect("limits");
    for (tenant, expected) in [(11, BURST), (1, 18 - TENANTS * BURST), (12, BURST), (3, BURST)] {
        let (mut in_redis, mut in_memory) = (0, 0);
        for _ in 0..100 {
            let options = AcquireOptions::cost(1).detail(Detail::All);
            let decision = redis.check(&tenant, options).await.expect("an answer");
            in_redis += u64::from(decision.is_allowed());
            let other = memory.check(&tenant, options);
            in_memory += u64::from(other.is_allowed());
            assert_eq!((decision.verdict(), decision.is_estimate()), (other.verdict(), false), "{tenant}");
        }
        assert_eq!([in_redis, in_memory], [expected; 2], "{tenant}");
    }
}

/// An evicted share has its burst again: its guarantee is lost until the usage has drained, and the common limit holds.
#[tokio::test]
async fn evicted_share_in_redis_never_exceeds_the_common_limit() {
    let server = Server::start();
    let day = |limit, burst| Gcra::new(Quota::per_day(limit)).burst(burst);
    let trace = Trace::new(&server, "evicted", &day(1, BURST), &day(TENANTS, 18));
    let mut admitted = 0;
    for _ in 0..10 {
        for tenant in 0..TENANTS {
            for _ in 0..10 {
                admitted += u64::from(trace.direct.check(&tenant, 1).await.expect("an answer").is_allowed());
            }
        }
        for key in server.keys().into_iter().filter(|key| key.contains(":share:")) {
            server.command(&["DEL", &key]);
        }
    }
    assert_eq!(admitted, 18);
}
