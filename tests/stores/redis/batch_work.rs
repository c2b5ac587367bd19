//! No script call occupies the server for long: a batch is smaller if its decisions are more expensive.
//!
//! Times depend on the machine, so the tests count: the decisions of the largest batch, and the commands and Lua
//! instructions of a full batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::observe::Event;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, Quota, Redis, SlidingLog, SlidingWindow, per_key,
};

use crate::helpers::LONG_DEADLINE;
use crate::lua::{self, one_template};
use crate::server::Server;

/// The maximum weight of a batch.
const MAX_WEIGHT: usize = 128;
const QUOTA: Quota = Quota::per_hour(1_000_000);

/// The limit of the counted batches.
const LIMIT: u16 = 1_000;
/// The maximum of the Lua instructions of a batch, and a hundred for each command: about 0.6 ms on an idle machine.
const MAX_WORK: u64 = 155_000;

fn window(blocks: u64) -> SlidingWindow {
    SlidingWindow::new(QUOTA).blocks(blocks)
}

/// Returns the numbers of operations of the largest call, and of all calls, for 1024 concurrent decisions on as many
/// keys.
async fn batches_of(limits: impl IntoRedisLimits<u64>) -> (usize, usize) {
    let server = Server::start();
    let largest = Arc::<AtomicUsize>::default();
    let calls = Arc::<AtomicUsize>::default();
    let (seen, counted) = (Arc::clone(&largest), Arc::clone(&calls));
    let builder = Redis::<u64>::builder(server.open(), "api", limits).deadline(LONG_DEADLINE);
    let limiter = builder.observe(move |event: &Event<'_>| {
        if let Event::Batch { size, .. } = event {
            seen.fetch_max(*size, Ordering::SeqCst);
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let limiter = limiter.build().expect("limits");
    limiter.health_check().await.expect("a working Redis");
    largest.store(0, Ordering::SeqCst);
    calls.store(0, Ordering::SeqCst);
    let decisions = (0..1024_u64).map(|key| limiter.acquire(&key, AcquireOptions::default()));
    for decision in join_all(decisions).await {
        let _ = decision.expect("an answer");
    }
    (largest.load(Ordering::SeqCst), calls.load(Ordering::SeqCst))
}

async fn check_batches(weight: usize, limits: impl IntoRedisLimits<u64>) {
    let (largest, calls) = batches_of(limits).await;
    // One decision is the smallest batch.
    assert!(largest <= (MAX_WEIGHT / weight).max(1), "{largest} decisions of weight {weight}");
    // On a slow machine the client makes its batches smaller.
    let smallest = (4 / weight).max(1);
    assert!((1024 / largest..=1024 / smallest).contains(&calls), "{calls} calls of at most {largest} decisions");
}

#[tokio::test]
async fn batches_of_expensive_decisions_are_smaller() {
    let (bucket, log) = (Gcra::new(QUOTA), SlidingLog::new(Quota::per_hour(10)));
    check_batches(1, bucket).await;
    check_batches(1, FixedWindow::new(QUOTA)).await;
    for (blocks, weight) in [(10, 2), (20, 3), (60, 6)] {
        check_batches(weight, window(blocks)).await;
    }
    check_batches(5, log).await;
    check_batches(weight_of(&SlidingLog::new(QUOTA)), SlidingLog::new(QUOTA)).await;
    // The weights of several limits add up, also for per-key algorithms.
    let three = (Limit::new("bucket", bucket), Limit::new("window", window(60)), Limit::new("log", log));
    check_batches(1 + 6 + 5, three).await;
    check_batches(6, per_key(move |_: &u64| window(60))).await;
}

fn weight_of(algorithm: &impl LuaAlgorithm) -> usize {
    usize::from(algorithm.weight())
}

/// Runs full batches on keys with usage in each of `steps` steps of time, then of nine tenths of the limit in `hits`
/// hits. Returns the most commands, and the most Lua instructions, of a batch that allows or denies each decision.
#[allow(clippy::cast_precision_loss, reason = "small")]
fn work_of(
    algorithm: &impl LuaAlgorithm,
    (kernel, fast): (&str, Option<&str>),
    (steps, step_micros): (u32, f64),
    hits: u16,
) -> (u64, u64) {
    let keys = u16::try_from((MAX_WEIGHT / weight_of(algorithm)).max(1)).expect("a batch");
    let params = |cost: u64| {
        let mut numbers = Vec::new();
        algorithm.params(cost, &mut numbers);
        numbers.into_iter().map(|number| number as f64).collect::<Vec<f64>>()
    };
    let batch = |now: f64, cost: u64, repeats: u16| one_template(now, fast.is_some(), keys, (cost, repeats), &params);
    let mut now = 1_790_000_000_000_000.0;
    let mut inputs = Vec::new();
    for _ in 0..steps {
        inputs.push(batch(now, 1, 1));
        now += step_micros;
    }
    let fills_at = inputs.len();
    inputs.push(batch(now, u64::from(LIMIT * 9 / 10 / hits), hits));
    inputs.push(batch(now, 1, 1));
    inputs.push(batch(now, u64::from(LIMIT / 2), 1));
    let replies = lua::run(&lua::script(kernel, fast), &inputs, usize::from(keys));
    // The batch that fills the limit may have more decisions than a batch of the client.
    let measured = replies.iter().enumerate().filter(|(index, _)| *index != fills_at).map(|(_, reply)| reply);
    measured.fold((0, 0), |(commands, instructions), reply| {
        (commands.max(reply.commands), instructions.max(reply.instructions))
    })
}

/// Under Redis 7.0, a command within a script takes about as long as a hundred Lua instructions.
#[test]
fn work_of_a_full_batch_is_bounded() {
    let quota = Quota::per_minute(u64::from(LIMIT));
    let bucket = (include_str!("../../../src/algorithm/bucket/bucket.lua"), None);
    let fast_bucket = (bucket.0, Some(lua::FAST_BUCKET));
    let fixed = include_str!("../../../src/algorithm/fixed_window.lua");
    let fast_fixed = (fixed, Some(include_str!("../../../src/algorithm/fixed_window_fast.lua")));
    let sliding = (include_str!("../../../src/algorithm/sliding_window/sliding_window.lua"), None);
    let log = (include_str!("../../../src/algorithm/sliding_log.lua"), None);
    let window = |blocks| SlidingWindow::new(quota).blocks(blocks);
    let second = 1e6;
    let works = [
        ("bucket, fast", work_of(&Gcra::new(quota), fast_bucket, (10, second), 1)),
        ("bucket", work_of(&Gcra::new(quota), bucket, (10, second), 1)),
        ("queue", work_of(&LeakyQueue::new(quota), bucket, (10, second), 1)),
        ("fixed window, fast", work_of(&FixedWindow::new(quota), fast_fixed, (10, second), 1)),
        ("fixed window", work_of(&FixedWindow::new(quota), (fixed, None), (10, second), 1)),
        ("1 block", work_of(&window(1), sliding, (10, second), 1)),
        ("10 blocks", work_of(&window(10), sliding, (20, 6.0 * second), 1)),
        ("60 blocks", work_of(&window(60), sliding, (60, second), 1)),
        ("log", work_of(&SlidingLog::new(quota), log, (20, second), LIMIT * 9 / 40)),
    ];
    for (name, (commands, instructions)) in works {
        println!("{name}: {commands} commands, {instructions} instructions");
    }
    for (name, (commands, instructions)) in works {
        let work = commands * 100 + instructions;
        assert!(work <= MAX_WORK, "{name}: {commands} commands, {instructions} instructions");
    }
}
