//! Limits that keep units free from some requests, and cannot be built. `several_limits` has the decisions.

use std::time::Duration;

use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{Gcra, LeakyQueue, Limit, Memory, Quota};

fn quota() -> Quota {
    Quota::new(6, Duration::from_secs(2))
}

fn classes<A: tower_ratelimit::algorithm::Algorithm>(algorithm: A) -> impl MemoryLimits<bool, Tables: Send> + 'static {
    Limit::new("all", algorithm).keyed_by(|_: &bool| ()).keep_free_by(|is_bulk: &bool| if *is_bulk { 30 } else { 0 })
}

#[test]
fn queue_that_keeps_units_free_and_limit_on_the_whole_key_beside_one_are_errors() {
    let error = Memory::builder(classes(LeakyQueue::new(quota()))).build().map(drop).expect_err("a queue").to_string();
    assert!(error.contains("limit \"all\": a queue cannot keep units free"), "{error}");
    let limits = (Limit::new("user", Gcra::new(quota())), {
        Limit::new("all", Gcra::new(quota())).keyed_by(|_: &bool| ()).keep_free_by(|is_bulk: &bool| u64::from(*is_bulk))
    });
    let error = Memory::builder(limits).build().map(drop).expect_err("a limit on the whole key").to_string();
    assert!(
        error.contains("limit \"user\": it counts by the whole key") && error.contains("keeps units free"),
        "{error}"
    );
}
