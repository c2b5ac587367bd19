//! Panics of user code and runtimes without timer or I/O: an error for the affected calls, and none for others.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::observe::Event;
use tower_ratelimit::{
    AcquireOptions, Gcra, LazySnapshot, LimitSnapshot, Limiter, Redis, RedisServer, Timestamp, per_key,
};

use crate::helpers::{AMPLE, LONG_DEADLINE, acquire, is_allowed, redis_limiter};
use crate::proxy::Proxy;
use crate::server::Server;

/// An algorithm that allows and counts everything, and panics in the stage that its variant names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    Works,
    PanicsInReading,
    PanicsInDecide,
    PanicsInParams,
}

impl Counter {
    fn of(key: &str) -> Self {
        match key {
            "reading" => Self::PanicsInReading,
            "commit" => Self::PanicsInDecide,
            "params" => Self::PanicsInParams,
            _ => Self::Works,
        }
    }

    fn panic_if(self, panics: Self) {
        assert!(self != panics, "this algorithm panics");
    }
}

impl Algorithm for Counter {
    type State = [u64; 2];

    fn decide(&self, state: &[u64; 2], now: Timestamp, options: ChargeOptions) -> Step<[u64; 2]> {
        self.panic_if(Self::PanicsInDecide);
        Step::Allow { next: [now.saturating_add(self.max_reset()).as_micros(), state[1] + options.cost], delay: 0 }
    }

    fn snapshot(&self, state: &[u64; 2], _: Timestamp) -> LazySnapshot {
        self.panic_if(Self::PanicsInReading);
        let window = self.max_reset();
        let idle = LimitSnapshot::new(1000, window).with_remaining(1000 - state[1]);
        idle.with_reset(window).with_next_token_after(window).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_secs(3600)
    }
}

impl LuaAlgorithm for Counter {
    const SCRIPT: LuaScript = LuaScript::new(
        "panicking1",
        "
        local function peek(s, now, max_delay, p) return 0 end
        local function commit(s, now, delay, p)
          s[1] = now + 3600000000
          s[2] = s[2] + p[1]
        end
        local function charge(s, now, cost, p)
          s[1] = now + 3600000000
          s[2] = s[2] + cost
        end
        return { words = 2, params = 1, supports_scheduling = false, peek = peek, commit = commit, charge = charge }
        ",
    );

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        self.panic_if(Self::PanicsInParams);
        params.push(cost);
    }
}

fn behind(proxy: &Proxy) -> RedisServer {
    RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address")
}

#[tokio::test]
async fn panic_of_an_algorithm_fails_only_its_own_decisions() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let limiter = redis_limiter::<str>(behind(&proxy), "api", per_key(|key: &str| Counter::of(key)));
    assert!(is_allowed(&limiter, "warm").await);
    let connections = proxy.connections();
    for round in 1..=3 {
        // All calls are in one batch.
        let keys = ["a", "reading", "b", "commit", "c", "reading", "d", "a"];
        let results = join_all(keys.map(|key| acquire(&limiter, key, AcquireOptions::default()))).await;
        for (key, result) in keys.iter().zip(results) {
            if Counter::of(key) == Counter::Works {
                assert!(result.expect("an answer").decision.is_allowed(), "round {round}: {key}");
                continue;
            }
            let error = result.expect_err("the algorithm panics");
            assert!(error.is_unavailable() && error.to_string().contains("panicked"), "{error}");
        }
        // A hold whose figures can't be computed is not granted, and its session ends.
        let held = ["commit", "a"].map(|key| acquire(&limiter, key, AcquireOptions::default().hold()));
        let [panicked, held] = join_all(held).await.try_into().expect("two");
        assert!(panicked.expect_err("the algorithm panics").to_string().contains("panicked"));
        held.expect("an answer").held.expect("room for it").release().await.expect("done");
        let used =
            1000 - limiter.peek("a", AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure");
        assert_eq!(used, round * 2);
        assert!(limiter.set_usage("default", "commit", 3).await.is_err());
    }
    // Parameters are computed by the caller, so the panic reaches the caller.
    let cloned = limiter.clone();
    let caller = tokio::spawn(async move { acquire(&cloned, "params", AcquireOptions::default()).await.map(drop) });
    assert!(caller.await.expect_err("a panic").is_panic());
    assert!(is_allowed(&limiter, "a").await);
    assert_eq!(proxy.connections(), connections, "the worker task continues");
}

#[tokio::test]
async fn panic_of_an_observer_fails_no_decision() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let builder = Redis::builder(behind(&proxy), "api", Gcra::new(AMPLE)).deadline(LONG_DEADLINE);
    let limiter: Redis<str> = builder.observe(|event: &Event<'_>| panic!("{event:?}")).build().expect("limits");
    assert!(is_allowed(&limiter, "warm").await);
    let connections = proxy.connections();
    for _ in 0..5 {
        for result in join_all((0..20).map(|_| acquire(&limiter, "alice", AcquireOptions::default()))).await {
            assert!(result.expect("an answer").decision.is_allowed());
        }
    }
    assert_eq!(proxy.connections(), connections, "the worker task continues");
    // Events of the breaker end no task either.
    proxy.shut(true);
    for _ in 0..5 {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err());
    }
    proxy.shut(false);
    let resumes = async {
        while acquire(&limiter, "alice", AcquireOptions::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG_DEADLINE, resumes).await.expect("service resumes");
}

#[test]
fn runtime_without_timer_or_io_is_an_error() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", Gcra::new(AMPLE));
    let runtimes = [
        Builder::new_current_thread().build(),
        Builder::new_current_thread().enable_io().build(),
        Builder::new_current_thread().enable_time().build(),
        Builder::new_multi_thread().worker_threads(1).enable_time().build(),
    ];
    for (index, runtime) in runtimes.into_iter().enumerate() {
        runtime.expect("a runtime").block_on(async {
            let errors = [
                limiter.acquire("alice", AcquireOptions::default()).await.map(drop),
                limiter.peek("alice", AcquireOptions::default()).await.map(drop),
                limiter.reset("alice").await,
                limiter.health_check().await,
            ];
            for (operation, result) in errors.into_iter().enumerate() {
                let error = result.expect_err("no timer or I/O");
                assert!(
                    error.is_config() && error.to_string().contains("`enable_all`"),
                    "{index}, {operation}: {error}"
                );
            }
        });
    }
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
        limiter.health_check().await.expect("a working Redis");
        assert!(is_allowed(&limiter, "alice").await);
    });
}
