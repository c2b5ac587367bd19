//! Exploring the orders of a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs a model in all orders of its atomic accesses with up to `preemptions` preemptions, and returns the number of
/// orders. The environment variable `MORE_PREEMPTIONS` adds to the preemptions of all models, for a longer run.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let more = std::env::var("MORE_PREEMPTIONS").map_or(0, |more| more.parse().expect("a number"));
    let orders = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions + more);
    // The default is too small for threads that wait for each other.
    builder.max_branches = 10_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    orders.load(Ordering::Relaxed)
}

/// Prints the number of orders of a model.
pub(crate) fn report_orders(orders: u64) {
    println!("{orders} orders");
    assert!(orders > 2, "a model with a single order checks nothing");
}
