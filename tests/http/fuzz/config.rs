//! Configuration in JSON and TOML.

use tower_ratelimit::config::{KeyParts, Policy};
use tower_ratelimit::{AcquireOptions, ManualClock, Memory};

/// Panics if a law of configuration is violated.
pub(crate) fn check(input: &[u8]) {
    if let Ok(policies) = serde_json::from_slice::<Vec<Policy>>(input) {
        build(&policies);
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(policy) = toml::from_str::<Policy>(text) {
        build(&[policy]);
    }
}

fn build(policies: &[Policy]) {
    for policy in policies {
        let text = serde_json::to_string(policy).expect("JSON");
        assert_eq!(&serde_json::from_str::<Policy>(&text).expect("its own form"), policy, "{text}");
    }
    let parts = KeyParts::new().add("user", |key: &u64| *key).add("all", |_: &u64| 0_u64);
    let (memory, redis) = (parts.limits(policies), parts.redis_limits(policies));
    assert_eq!(memory.is_ok(), redis.is_ok(), "both stores accept the same policies");
    let Ok(limits) = memory else { return };
    let Ok(limiter) = Memory::builder(limits).max_keys(4).clock(ManualClock::new()).build() else { return };
    for cost in [1, 0, 1 << 53, u64::MAX] {
        let decision = limiter.check(&7, AcquireOptions::cost(cost));
        let _ = (decision.retry_after(), decision.reset(), decision.remaining());
    }
}
