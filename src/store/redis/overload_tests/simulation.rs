//! A simulated Redis with a fixed service time, behind a link with a fixed round trip and jitter, in virtual time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{Arg, Cmd, RedisError, Value};
use tokio::time::{Instant, sleep, sleep_until};

use crate::clock::micros_floor;
use crate::limiter::BoxFuture;
use crate::random::Random;
use crate::store::redis::connect::{Connection, Connector, CredentialsProvider, Failure};
use crate::store::redis::simulation_tests::quota::{Form, Quota};
use crate::store::redis::simulation_tests::wire::{BatchReply, Input, LATE, Step, Template, to_f64};
use crate::store::redis::{Redis, RedisServer};
use crate::{Error, Gcra};

const QUOTA: Quota = Quota { units: 1_000_000, period: 1_000_000, form: Form::TokenBucket { burst: 1_000_000 } };

/// A link to a server that runs one call after the other.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) round_trip: Duration,
    /// The maximum additional delay of each direction. The order of calls is kept.
    pub(super) jitter: Duration,
    pub(super) per_call: Duration,
    pub(super) per_operation: Duration,
    /// One reply of this many takes longer, by this time. It delays those behind it.
    pub(super) slow_reply: Option<(u64, Duration)>,
}

#[derive(Clone)]
pub(super) struct Simulation(Arc<Mutex<State>>);

pub(super) struct State {
    link: Link,
    epoch: Instant,
    /// The difference of the server's clock.
    clock_offset: Duration,
    last_arrival: Instant,
    busy_until: Instant,
    last_reply: Instant,
    random: Random,
    pub(super) calls: u64,
    /// For each call the callers that had been answered when it was sent, as a test counts them.
    pub(super) answered: Arc<AtomicU64>,
    pub(super) answered_before: Vec<u64>,
    pub(super) charged: u64,
    pub(super) updates: u64,
    /// When each session expires, by its id.
    sessions: HashMap<u64, Instant>,
    expired: usize,
    /// The longest time of one call.
    pub(super) longest: Duration,
}

impl Simulation {
    pub(super) fn new(link: Link) -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(State {
            link,
            epoch: now,
            clock_offset: Duration::from_secs(1_800_000_000),
            last_arrival: now,
            busy_until: now,
            last_reply: now,
            random: Random::new(1),
            calls: 0,
            answered: Arc::default(),
            answered_before: Vec::new(),
            charged: 0,
            updates: 0,
            sessions: HashMap::new(),
            expired: 0,
            longest: Duration::ZERO,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }

    pub(super) fn limiter(&self, deadline: Duration) -> Redis<u64> {
        let limit = Gcra::new(crate::Quota::per_second(QUOTA.units));
        let server = RedisServer::from_connector(Arc::new(self.clone()));
        Redis::builder(server, "api", limit).deadline(deadline).build().expect("limits")
    }

    pub(super) fn stall(&self, span: Duration) {
        let mut state = self.state();
        state.busy_until = state.busy_until.max(Instant::now()) + span;
    }
}

impl State {
    /// The sessions that have expired until now.
    pub(super) fn expired_sessions(&self) -> usize {
        let now = Instant::now();
        self.expired + self.sessions.values().filter(|expires_at| **expires_at <= now).count()
    }

    /// Creates, renews or ends the session of a hold or an update that runs at this time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of some seconds")]
    fn record_session(&mut self, template: &Template, at: Instant) {
        let (expiry, ends) = match template.operation {
            Input::HOLD => (template.arg2 as u64, false),
            Input::UPDATE => (template.arg1, template.ids[3] > 0.0),
            _ => return,
        };
        let id = template.ids[0].abs().to_bits();
        self.expired += usize::from(self.sessions.remove(&id).is_some_and(|expires_at| expires_at <= at));
        if !ends {
            self.sessions.insert(id, at + Duration::from_micros(expiry));
        }
    }

    fn jitter(&mut self) -> Duration {
        self.link.jitter.mul_f64(self.random.share())
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
        self.calls += 1;
        self.answered_before.push(self.answered.load(Ordering::Relaxed));
        let Input { latest_start, is_fast, key_counts, templates, steps, wrong } =
            Input::read(parts.last().expect("the input"), &[QUOTA]);
        assert_eq!(wrong, None);
        let operation = |step: &Step| std::iter::repeat_n(templates[step.template].operation, step.repeats.into());
        let operations: Vec<u16> = steps.iter().flat_map(operation).collect();
        let arrival = self.last_arrival.max(Instant::now() + self.link.round_trip / 2 + self.jitter());
        let start = arrival.max(self.busy_until);
        let now = micros_floor(start - self.epoch + self.clock_offset);
        let is_late = latest_start > 0.0 && to_f64(now) > latest_start;
        let mut results = Vec::new();
        let decisions = operations.iter().filter(|&&operation| operation <= Input::HOLD).count() as u64;
        self.updates += operations.len() as u64 - decisions;
        self.charged += if is_late { 0 } else { decisions };
        for step in &steps {
            self.record_session(&templates[step.template], start);
        }
        for &operation in &operations {
            let result = if is_late && operation <= Input::HOLD { LATE } else { 0.0 };
            results.extend(std::iter::repeat_n(result, if is_fast && !is_late { 1 } else { 2 }));
        }
        let run = if is_late { 0 } else { operations.len() };
        let span = self.link.per_call + self.link.per_operation * u32::try_from(run).expect("a batch");
        self.longest = self.longest.max(span);
        (self.last_arrival, self.busy_until) = (arrival, start + span);
        let slow = self
            .link
            .slow_reply
            .filter(|(every, _)| self.calls.is_multiple_of(*every))
            .map_or(Duration::ZERO, |slow| slow.1);
        self.last_reply = self.last_reply.max(self.busy_until + self.link.round_trip / 2 + self.jitter() + slow);
        let reply = BatchReply { results, values: vec![None; key_counts[0]], expired: 0 };
        let reply = reply.pack(now, is_fast && !is_late);
        (Value::BulkString(reply), self.last_reply)
    }
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

    fn with_credentials(&self, _provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        unreachable!("no test uses credentials")
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &crate::store::redis::connect::RedisTls) -> Result<Arc<dyn Connector>, Error> {
        unreachable!("no test uses TLS")
    }
}
