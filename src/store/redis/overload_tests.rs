//! Open-loop load on a simulated server with a fixed service time, in virtual time.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{Arg, Cmd, RedisError, Value};
use tokio::time::{Instant, sleep, sleep_until};

use super::connect::{Connection, Connector, Failure};
use super::{Redis, RedisServer};
use crate::limiter::BoxFuture;
use crate::{AcquireOptions, Gcra, Limiter, Quota};

const MS: Duration = Duration::from_millis(1);
/// The limiter's numbers for a bucket, one for a shadow limit, and the cost.
const BUCKET_PARAMS: usize = 11;
const LATE: f64 = 4.0 - 9_007_199_254_740_992.0;

/// A link to a server that runs one call after the other.
#[derive(Clone, Copy)]
struct Link {
    round_trip: Duration,
    /// The maximum additional delay of each direction. The order of calls is kept.
    jitter: Duration,
    per_call: Duration,
    per_operation: Duration,
}

#[derive(Clone)]
struct Simulation(Arc<Mutex<State>>);

struct State {
    link: Link,
    epoch: Instant,
    /// The difference of the server's clock.
    clock_offset: Duration,
    last_arrival: Instant,
    busy_until: Instant,
    last_reply: Instant,
    random: u64,
    charged: u64,
    updates: u64,
    /// The longest time of one call.
    longest: Duration,
}

impl Simulation {
    fn new(link: Link) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(State {
            link,
            epoch: now,
            clock_offset: Duration::from_secs(1_800_000_000),
            last_arrival: now,
            busy_until: now,
            last_reply: now,
            random: 1,
            charged: 0,
            updates: 0,
            longest: Duration::ZERO,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    fn limiter(&self, deadline: Duration) -> Redis<u64> {
        let limit = Gcra::new(Quota::per_second(1_000_000));
        let server = RedisServer::from_connector(Arc::new(self.clone()));
        Redis::builder(server, "api", limit).deadline(deadline).build().expect("limits")
    }

    fn stall(&self, span: Duration) {
        let mut state = self.state();
        state.busy_until = state.busy_until.max(Instant::now()) + span;
    }
}

impl State {
    fn jitter(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.link.jitter.mul_f64(f64::from(u32::try_from(self.random >> 32).expect("32 bits")) / f64::from(u32::MAX))
    }

    /// Runs a call that is sent now. Returns the reply, and when it arrives.
    fn run(&mut self, command: &Cmd) -> (Value, Instant) {
        let parts: Vec<&[u8]> = command
            .args_iter()
            .map(|part| match part {
                Arg::Simple(bytes) => bytes,
                _ => &[],
            })
            .collect();
        if !parts[0].starts_with(b"EVAL") {
            return (Value::Okay, Instant::now() + self.link.round_trip);
        }
        let keys: u16 = std::str::from_utf8(parts[2]).expect("text").parse().expect("a number");
        let (is_fast, latest_start, operations) = decode(parts.last().expect("the input"));
        let arrival = self.last_arrival.max(Instant::now() + self.link.round_trip / 2 + self.jitter());
        let start = arrival.max(self.busy_until);
        let now = micros(start - self.epoch + self.clock_offset);
        let is_late = latest_start > 0.0 && now > latest_start;
        let mut results = Vec::new();
        let decisions = operations.iter().filter(|&&operation| operation <= 2).count() as u64;
        self.updates += operations.len() as u64 - decisions;
        self.charged += if is_late { 0 } else { decisions };
        for &operation in &operations {
            let result = if is_late && operation <= 2 { LATE } else { 0.0 };
            results.extend(std::iter::repeat_n(result, if is_fast && !is_late { 1 } else { 2 }));
        }
        let run = if is_late { 0 } else { operations.len() };
        let span = self.link.per_call + self.link.per_operation * u32::try_from(run).expect("a batch");
        self.longest = self.longest.max(span);
        (self.last_arrival, self.busy_until) = (arrival, start + span);
        self.last_reply = self.last_reply.max(self.busy_until + self.link.round_trip / 2 + self.jitter());
        let mut reply = now.to_le_bytes().to_vec();
        let flags = u16::from(is_fast && !is_late);
        for number in [flags, u16::try_from(results.len()).expect("a batch"), keys] {
            reply.extend(number.to_le_bytes());
        }
        reply.extend(results.iter().flat_map(|result| result.to_le_bytes()));
        reply.extend(std::iter::repeat_n(0, usize::from(keys) * 2));
        (Value::BulkString(reply), self.last_reply)
    }
}

#[allow(clippy::cast_precision_loss)]
fn micros(span: Duration) -> f64 {
    span.as_micros() as f64
}

/// Returns whether the fast path applies, the latest start, and the code of each operation.
fn decode(input: &[u8]) -> (bool, f64, Vec<u16>) {
    let f64_at = |at: usize| f64::from_le_bytes(input[at..at + 8].try_into().expect("8 bytes"));
    let u16_at = |at: usize| u16::from_le_bytes(input[at..at + 2].try_into().expect("2 bytes"));
    let [fast, templates, steps] = [16, 18, 20].map(u16_at);
    let mut at = 24;
    let mut codes = Vec::new();
    for _ in 0..templates {
        let code = u16_at(at);
        codes.push(code);
        let ids = if code == 2 {
            1
        } else if code == 7 {
            4
        } else {
            0
        };
        at += 20 + 8 * (BUCKET_PARAMS + ids);
    }
    let mut operations = Vec::new();
    for _ in 0..steps {
        let code = codes[usize::from(u16_at(at)) - 1];
        operations.extend(std::iter::repeat_n(code, usize::from(u16_at(at + 4))));
        at += 6;
    }
    assert_eq!(at, input.len());
    (fast == 1, f64_at(8), operations)
}

impl Connection for Simulation {
    fn call(&self, _slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let server = self.clone();
        Box::pin(async move {
            let (reply, at) = server.state().run(&command);
            sleep_until(at).await;
            Ok(reply)
        })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        Box::pin(std::future::ready(true))
    }
}

impl Connector for Simulation {
    fn connect(&self, _node: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let connection = self.clone();
        Box::pin(async move {
            let round_trip = connection.state().link.round_trip;
            sleep(round_trip).await;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a simulation"
    }

    fn with_credentials(
        &self,
        _provider: super::connect::CredentialsProvider,
    ) -> Result<Arc<dyn Connector>, crate::error::Error> {
        unreachable!("no test uses credentials")
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &super::connect::RedisTls) -> Result<Arc<dyn Connector>, crate::error::Error> {
        unreachable!("no test uses TLS")
    }
}

#[derive(Debug)]
struct Goodput {
    offered: u64,
    answered: u64,
    charged: u64,
    p50: Duration,
    p99: Duration,
}

/// Waits until the limiter has a connection.
async fn connect(limiter: &Redis<u64>) {
    while limiter.acquire(&0, AcquireOptions::default()).await.is_err() {
        sleep(MS).await;
    }
}

/// Starts decisions at a fixed rate, and waits until all have ended.
async fn offer(simulation: &Simulation, limiter: &Redis<u64>, per_ms: u64, span: Duration) -> Goodput {
    connect(limiter).await;
    let before = simulation.state().charged;
    let times = Arc::new(Mutex::new(Vec::new()));
    let (mut offered, started_at, mut tasks) = (0, Instant::now(), Vec::new());
    while started_at.elapsed() < span {
        for _ in 0..per_ms {
            offered += 1;
            let (decision, times) =
                (limiter.acquire(&(offered % 10_000), AcquireOptions::default()), Arc::clone(&times));
            let began = Instant::now();
            tasks.push(tokio::spawn(async move {
                if decision.await.is_ok() {
                    times.lock().expect("no panic").push(began.elapsed());
                }
            }));
        }
        sleep(MS).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut times = std::mem::take(&mut *times.lock().expect("no panic"));
    times.sort();
    let quantile = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    let state = simulation.state();
    Goodput {
        offered,
        answered: times.len() as u64,
        charged: state.charged - before,
        p50: quantile(50),
        p99: quantile(99),
    }
}

/// The decisions that a plain pipelined client answers in time: one call per decision, first in, first out.
fn plain(link: Link, deadline: Duration, per_ms: u64, span: Duration) -> u64 {
    let service = link.per_call + link.per_operation;
    let (mut free_at, mut answered) = (Duration::ZERO, 0);
    for tick in 0..u32::try_from(span.as_millis()).expect("a short span") {
        let sent = MS * tick;
        for _ in 0..per_ms {
            free_at = free_at.max(sent + link.round_trip / 2) + service;
            answered += u64::from(free_at + link.round_trip / 2 <= sent + deadline);
        }
    }
    answered
}

fn slow_server(round_trip: u32) -> Link {
    Link {
        round_trip: MS * round_trip,
        jitter: Duration::ZERO,
        per_call: Duration::from_micros(20),
        per_operation: Duration::from_micros(50),
    }
}

/// The decisions of the slow server in calls of at most a millisecond: 19 in 0.97 ms.
fn capacity(span: Duration) -> u64 {
    19 * u64::try_from(span.as_micros()).expect("a short span") / 970
}

const SPAN: Duration = Duration::from_secs(1);
/// Decisions per millisecond: twice the capacity.
const OVERLOAD: u64 = 40;
const LINKS: [(u32, u32); 3] = [(0, 50), (25, 50), (200, 500)];

#[tokio::test(start_paused = true)]
async fn goodput_over_capacity() {
    for (round_trip, deadline) in LINKS {
        let link = slow_server(round_trip);
        let simulation = Simulation::new(link);
        let limiter = simulation.limiter(MS * deadline);
        // The server needs 1.6 ms for one of the first batches. The limiter measures that first.
        offer(&simulation, &limiter, OVERLOAD, SPAN).await;
        simulation.state().longest = Duration::ZERO;
        let goodput = offer(&simulation, &limiter, OVERLOAD, SPAN).await;
        let (possible, plain) = (capacity(SPAN), plain(link, MS * deadline, OVERLOAD, SPAN));
        assert!(
            goodput.answered * 10 >= possible.max(plain) * 8,
            "{round_trip} ms: {goodput:?} of {possible}, {plain}"
        );
        assert!(goodput.charged * 100 <= goodput.answered * 102, "{round_trip} ms: {goodput:?}");
        assert!(goodput.p99 <= MS * deadline, "{round_trip} ms: {goodput:?}");
        let longest = simulation.state().longest;
        assert!(longest <= MS * 3 / 2, "a batch occupies the server for about a millisecond: {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_decisions_below_capacity_are_answered() {
    for (round_trip, deadline) in LINKS {
        for per_ms in [1, 10] {
            let simulation = Simulation::new(slow_server(round_trip));
            let goodput = offer(&simulation, &simulation.limiter(MS * deadline), per_ms, SPAN).await;
            assert_eq!([goodput.answered, goodput.charged], [goodput.offered; 2], "{round_trip} ms, {per_ms}/ms");
            // Half of the decisions wait for the round trip, the service of two batches, and two ticks of the timer.
            assert!(goodput.p50 <= MS * (round_trip + 4), "{round_trip} ms: {goodput:?}");
        }
    }
}

/// Runs a stall of the server while decisions arrive, one per millisecond. Returns the charged decisions, and for each
/// decision whether it was answered.
async fn stall(link: Link, deadline: Duration, span: Duration) -> (u64, Vec<bool>) {
    let simulation = Simulation::new(link);
    let limiter = simulation.limiter(deadline);
    connect(&limiter).await;
    let before = simulation.state().charged;
    let mut decisions = Vec::new();
    for tick in 0..600 {
        if tick == 300 {
            simulation.stall(span);
        }
        decisions.push(tokio::spawn(limiter.acquire(&tick, AcquireOptions::default()).into_future()));
        sleep(MS).await;
    }
    let mut answered = Vec::new();
    for decision in decisions {
        answered.push(decision.await.expect("no panic").is_ok());
    }
    sleep(deadline * 4).await;
    let charged = simulation.state().charged - before;
    (charged, answered)
}

#[tokio::test(start_paused = true)]
async fn stalled_server_charges_no_decision_that_is_late() {
    for (round_trip, deadline) in LINKS {
        // Each decision of the first half of the stall is late.
        let span = MS * (deadline + deadline / 2);
        let (charged, answered) = stall(slow_server(round_trip), MS * deadline, span).await;
        let answered = answered.iter().filter(|answered| **answered).count() as u64;
        assert!(answered < 600 && charged <= answered + 5, "{round_trip} ms: {answered} answered, {charged} charged");
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_after_a_stall_are_answered() {
    let (_, answered) = stall(slow_server(0), MS * 50, MS * 100).await;
    // A stalled connection is replaced after twice the deadline.
    assert!(answered[..299].iter().all(|answered| *answered));
    assert!(answered[300 + 110..].iter().all(|answered| *answered), "{:?}", &answered[400..]);
    let (_, answered) = stall(slow_server(0), MS * 50, MS * 30).await;
    let failed = answered.iter().filter(|answered| !**answered).count();
    assert!(failed <= 8, "a stall that is shorter than the deadline: {failed} failed");
}

#[tokio::test(start_paused = true)]
async fn round_trip_above_the_deadline_charges_little() {
    let simulation = Simulation::new(slow_server(60));
    let limiter = simulation.limiter(MS * 50);
    let mut failed = 0;
    for key in 0..2_000 {
        let decision = tokio::spawn(limiter.acquire(&key, AcquireOptions::default()).into_future());
        sleep(MS).await;
        failed += u64::from(decision.is_finished());
    }
    let charged = simulation.state().charged;
    // The first call is sent without knowledge of the link. After that the script makes no decision of a probe.
    assert!(charged <= 80, "{charged} charged");
    assert!(failed > 1_500, "without a call in flight that could succeed, decisions fail at once: {failed}");
}

#[tokio::test(start_paused = true)]
async fn settlements_are_sent_under_overload() {
    let simulation = Simulation::new(slow_server(0));
    let limiter = simulation.limiter(MS * 50);
    connect(&limiter).await;
    let mut held = Vec::new();
    for key in 0..50_u64 {
        let outcome = limiter.acquire(&key, AcquireOptions::default().hold()).await.expect("an answer");
        held.push(outcome.held.expect("allowed"));
    }
    let mut failed = 0;
    for _ in 0..300 {
        for key in 0..OVERLOAD {
            drop(tokio::spawn(limiter.acquire(&key, AcquireOptions::default()).into_future()));
        }
        if let Some(held) = held.pop() {
            failed += u64::from(held.settle(1).await.is_err());
        } else {
            break;
        }
    }
    assert_eq!(failed, 0, "each settlement is confirmed within the deadline");
    assert!(simulation.state().updates >= 50);
}

#[tokio::test(start_paused = true)]
async fn jitter_below_the_deadline_charges_only_what_is_answered() {
    let link = Link { jitter: MS * 10, ..slow_server(5) };
    for per_ms in [1, 10, OVERLOAD] {
        let simulation = Simulation::new(link);
        let goodput = offer(&simulation, &simulation.limiter(MS * 50), per_ms, SPAN).await;
        assert!(goodput.charged * 100 <= goodput.answered * 105, "{goodput:?}");
        assert!(goodput.answered * 10 >= goodput.offered.min(capacity(SPAN)) * 4, "{goodput:?}");
    }
}
