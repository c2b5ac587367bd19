//! `check_lua_algorithm` passes each algorithm, and finds a Lua implementation that differs.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::test_util::{check_algorithm, check_lua_algorithm};
use tower_ratelimit::{
    FixedWindow, Gcra, LazySnapshot, LeakyQueue, LimitSnapshot, Quota, SlidingLog, SlidingWindow, Timestamp,
    TokenBucket,
};

use crate::server::Server;

/// A cool-down whose Lua implementation waits for a microsecond less.
#[derive(Clone, Debug)]
struct CoolDown(Duration);

impl Algorithm for CoolDown {
    type State = [u64; 1];

    fn decide(&self, &[open_at]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
        let wait = Timestamp::from_micros(open_at).saturating_since(now);
        if !options.is_forced() && options.cost > 1 {
            Step::Exceeds
        } else if !options.is_forced() && options.cost > 0 && !wait.is_zero() && wait <= 2 * self.0 {
            Step::deny_for(wait)
        } else {
            let start = now.saturating_add(options.forced_delay());
            Step::Allow { next: [start.saturating_add(self.0).as_micros()], delay: 0 }
        }
    }

    fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
        let wait = Timestamp::from_micros(open_at).saturating_since(now);
        let remaining = u64::from(wait.is_zero());
        LimitSnapshot::new(1, self.0).with_remaining(remaining).with_reset(wait).with_next_token_after(wait).into()
    }

    fn max_reset(&self) -> Duration {
        self.0
    }
}

impl LuaAlgorithm for CoolDown {
    const SCRIPT: LuaScript = LuaScript::new(
        "short_cool_down1",
        "
        local function peek(s, now, max_delay, p)
          if p[2] > 1 then return -1 end
          local wait = s[1] - now - 1
          if p[2] == 0 or wait <= 0 or wait > 2 * p[1] then return 0 end
          return wait
        end
        local function commit(s, now, delay, p) s[1] = now + delay + p[1] end
        local function charge(s, now, cost, p) s[1] = now + p[1] end
        return { words = 1, params = 2, supports_scheduling = false, peek = peek, commit = commit, charge = charge }
        ",
    );

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX), cost]);
    }
}

#[tokio::test]
async fn check_lua_algorithm_passes_every_algorithm_and_finds_a_difference() {
    let server = Server::start();
    let address = server.open();
    let quota = Quota::new(7, Duration::from_secs(10));
    let passes = |decided: Result<u64, tower_ratelimit::test_util::Violation>| {
        let decided = decided.unwrap_or_else(|violation| panic!("{violation}"));
        assert!(decided >= 1_000, "{decided}");
    };
    passes(check_lua_algorithm(&Gcra::new(quota).burst(12), &address).await);
    passes(check_lua_algorithm(&TokenBucket::new(quota), &address).await);
    passes(check_lua_algorithm(&LeakyQueue::new(quota).max_waiting(3), &address).await);
    passes(check_lua_algorithm(&FixedWindow::new(quota), &address).await);
    passes(check_lua_algorithm(&SlidingWindow::new(quota), &address).await);
    passes(check_lua_algorithm(&SlidingLog::new(quota), &address).await);
    let cool_down = CoolDown(Duration::from_secs(1));
    check_algorithm(&cool_down).expect("the laws hold in Rust");
    let violation = check_lua_algorithm(&cool_down, &address).await.expect_err("a difference").to_string();
    assert!(violation.contains("the decision in Redis differs"), "{violation}");
}
