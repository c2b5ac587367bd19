//! `check_lua_algorithm` passes each algorithm, and finds a Lua implementation that differs.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::test_util::{check_algorithm, check_lua_algorithm};
use tower_ratelimit::{
    FixedWindow, Gcra, LazySnapshot, LeakyQueue, Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket,
};

use crate::server::Server;

/// A window with another script version, or whose Lua implementation counts `MORE` units more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InLua<const MORE: u64>(pub(crate) FixedWindow);

impl<const MORE: u64> Algorithm for InLua<MORE> {
    type State = <FixedWindow as Algorithm>::State;

    const STATE_NAME: &'static str = FixedWindow::STATE_NAME;

    fn decide(&self, state: &Self::State, now: Timestamp, options: ChargeOptions) -> Step<Self::State> {
        self.0.decide(state, now, options)
    }

    fn snapshot(&self, state: &Self::State, now: Timestamp) -> LazySnapshot {
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }
}

impl<const MORE: u64> LuaAlgorithm for InLua<MORE> {
    const SCRIPT: LuaScript = if MORE > 0 {
        FixedWindow::SCRIPT
    } else {
        LuaScript::new("fixed_window1", include_str!("../../../src/algorithm/fixed_window.lua"))
    };

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        FixedWindow::new(Quota::new(self.0.quota().limit() + MORE, self.0.quota().period())).params(cost, params);
    }
}

#[tokio::test]
async fn check_lua_algorithm_passes_every_algorithm_and_finds_a_difference() {
    let server = Server::start();
    let address = server.open();
    let quota = Quota::new(7, Duration::from_secs(10));
    let passes = |decided: Result<u64, tower_ratelimit::response::BoxError>| {
        let decided = decided.unwrap_or_else(|violation| panic!("{violation}"));
        assert!(decided >= 1_000, "{decided}");
    };
    passes(check_lua_algorithm(&Gcra::new(quota).burst(12), &address).await);
    passes(check_lua_algorithm(&TokenBucket::new(quota), &address).await);
    passes(check_lua_algorithm(&LeakyQueue::new(quota).max_waiting(3), &address).await);
    passes(check_lua_algorithm(&FixedWindow::new(quota), &address).await);
    passes(check_lua_algorithm(&SlidingWindow::new(quota), &address).await);
    passes(check_lua_algorithm(&SlidingLog::new(quota), &address).await);
    let wrong = InLua::<1>(FixedWindow::new(quota));
    check_algorithm(&wrong).expect("the laws hold in Rust");
    let violation = check_lua_algorithm(&wrong, &address).await.expect_err("a difference").to_string();
    assert!(violation.contains("the decision in Redis differs"), "{violation}");
}
