//! The law of leases on a real server: each unit is charged once, at each limit, whichever process spends it and however.
//!
//! Random requests of two processes on random limits, in virtual time, with holds, other limits and a closed process in
//! between. In the end each limit has left what was not admitted, and the events account for every unit. The fixed quotas
//! do not refill during a trace: `exactness_tests` checks every window of those that do, with lost and repeated reports.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::limiter::Held;
use tower_ratelimit::observe::Event;
use tower_ratelimit::store::{Lease, RedisLimit};
use tower_ratelimit::{
    AcquireOptions, Costs, DecisionSource, Detail, FixedWindow, Gcra, LeakyBucket, Limit, LimitStatus, Limiter as _,
    Quota, Redis, RedisServer, SlidingLog, SlidingWindow, TokenBucket, per_key,
};

use crate::cluster_server::{Cluster, MASTERS};
use crate::helpers::acquire;
use crate::leases::{DURATION, decide, direct};
use crate::random::Random;
use crate::server::Server;

const USERS: [&str; 3] = ["alice", "bob", "carol of the paid tier"];

/// The units of the limits, which a trace may change.
type Units = Arc<AtomicU64>;

fn a_day(units: &Units, times: u64) -> Quota {
    Quota::per_day(units.load(Ordering::Relaxed) * times)
}

/// A name, and limits of so many units.
type Row = (&'static str, fn(&Units) -> Vec<RedisLimit<str>>);

fn rows() -> Vec<Row> {
    vec![
        ("gcra", |units| vec![RedisLimit::new(Gcra::new(a_day(units, 1)))]),
        ("token bucket", |units| vec![RedisLimit::new(TokenBucket::new(a_day(units, 1)))]),
        ("leaky bucket", |units| vec![RedisLimit::new(LeakyBucket::new(a_day(units, 1)))]),
        ("fixed window", |units| vec![RedisLimit::new(FixedWindow::new(a_day(units, 1)))]),
        ("sliding window", |units| vec![RedisLimit::new(SlidingWindow::new(a_day(units, 1)))]),
        ("weighted window", |units| vec![RedisLimit::new(SlidingWindow::new(a_day(units, 1)).blocks(1).weighted())]),
        ("sliding log", |units| vec![RedisLimit::new(SlidingLog::new(a_day(units, 1)))]),
        ("user and all", |units| {
            let all = Limit::new("all", SlidingLog::new(a_day(units, 2))).keyed_by(|_: &str| ());
            vec![RedisLimit::new(Limit::new("user", Gcra::new(a_day(units, 1)))), RedisLimit::new(all)]
        }),
        ("requests and tokens", |units| {
            let tokens = Limit::new("tokens", TokenBucket::new(a_day(units, 4))).cost_of("tokens");
            let requests = Limit::new("requests", SlidingWindow::new(a_day(units, 1))).fixed_cost(1);
            vec![RedisLimit::new(tokens), RedisLimit::new(requests)]
        }),
        ("shadow without room", |units| {
            let trial = Limit::new("trial", FixedWindow::new(Quota::per_day(40))).shadow();
            vec![RedisLimit::new(Limit::new("user", FixedWindow::new(a_day(units, 1)))), RedisLimit::new(trial)]
        }),
        ("tiers", |units| {
            let units = Arc::clone(units);
            let tier = move |user: &str| FixedWindow::new(a_day(&units, if user.contains("paid") { 2 } else { 1 }));
            vec![RedisLimit::new(per_key(tier))]
        }),
    ]
}

/// Two processes, and what they have admitted.
struct Trace {
    server: RedisServer,
    row: Row,
    units: Units,
    processes: Vec<Redis<str>>,
    /// The admitted costs, by the limit and the user.
    admitted: BTreeMap<(String, &'static str), u64>,
    /// The guards, with the user and the names of the limits that hold.
    held: Vec<(Held, &'static str, Vec<String>)>,
    by_lease: u64,
    /// The sums of the granted, spent, returned and lost units of the leases.
    reported: Arc<Mutex<[u64; 4]>>,
}

impl Trace {
    fn new(server: RedisServer, row: Row, units: u64) -> Self {
        let (units, processes, admitted) = (Arc::new(units.into()), Vec::new(), BTreeMap::new());
        let (held, reported) = (Vec::new(), Arc::default());
        let mut trace = Self { server, row, units, processes, admitted, held, by_lease: 0, reported };
        trace.processes = vec![trace.process(), trace.process()];
        trace
    }

    fn process(&self) -> Redis<str> {
        let reported = Arc::clone(&self.reported);
        let builder = direct(self.server.clone(), (self.row.1)(&self.units)).lease(Lease::new(DURATION));
        let builder = builder.observe(move |event: &Event<'_>| {
            if let Event::LeaseRenewed { granted, spent, returned, lost, .. } = *event {
                let mut units = reported.lock().expect("no panic");
                for (sum, count) in units.iter_mut().zip([granted, spent, returned, lost]) {
                    *sum += count;
                }
            }
        });
        builder.build().expect("limits")
    }

    fn count(&mut self, limit: &str, user: &'static str, cost: u64) {
        let user = if limit == "all" { "" } else { user };
        *self.admitted.entry((limit.to_owned(), user)).or_default() += cost;
    }

    fn costs(&self, cost: u64) -> Costs {
        if self.row.0 == "requests and tokens" { Costs::new().add("tokens", cost) } else { cost.into() }
    }

    /// Acquires or holds. Leases serve neither holds, nor free requests, nor large ones.
    async fn request(&mut self, random: &mut Random) {
        let (process, user) = (&self.processes[random.index(2)], USERS[random.choose(&[0, 0, 0, 0, 1, 2])]);
        let (rare, units) = (random.below(100), self.units.load(Ordering::Relaxed));
        let cost = if rare == 0 { random.choose(&[0, units / 2]) } else { random.choose(&[1, 1, 1, 1, 2, 3]) };
        let options = AcquireOptions::from(self.costs(cost)).detail(Detail::All);
        let (decision, held) = if rare == 1 {
            let outcome = acquire(process, user, options.hold()).await.expect("an answer");
            (outcome.decision, outcome.held)
        } else {
            (decide(process, user, options).await, None)
        };
        let is_by_lease = decision.source() == DecisionSource::Lease;
        assert!(!is_by_lease || rare > 1, "{}: {cost} by {decision:?}", self.row.0);
        // The current limits, not the limits at the grant.
        let is_current = |limit: &LimitStatus| limit.limit().is_multiple_of(units) || limit.is_shadow();
        assert!(decision.limits().iter().all(is_current), "{}: {decision:?} of {units}", self.row.0);
        if decision.is_allowed() {
            self.by_lease += u64::from(is_by_lease);
            let mut holding = Vec::new();
            for limit in decision.limits().iter().filter(|limit| limit.verdict().is_allowed()) {
                match limit.name() {
                    "requests" => self.count("requests", user, 1),
                    name if held.is_some() => holding.push(name.to_owned()),
                    name => self.count(name, user, cost),
                }
            }
            self.held.extend(held.map(|held| (held, user, holding)));
        }
    }

    /// Settles a hold below, at or above its cost.
    async fn settle(&mut self, index: usize, actual: u64) {
        let (held, user, holding) = self.held.swap_remove(index);
        held.settle(self.costs(actual)).await.expect("settled");
        for limit in holding {
            self.count(&limit, user, actual);
        }
    }

    /// Doubles the units. A limit that the key chooses changes by itself.
    fn double(&self) {
        self.units.store(2 * self.units.load(Ordering::Relaxed), Ordering::Relaxed);
        if self.row.0 != "tiers" {
            for process in &self.processes {
                process.replace((self.row.1)(&self.units)).expect("limits");
            }
        }
    }

    /// Closes all, and compares what is left.
    async fn end(mut self) {
        let name = self.row.0;
        while !self.held.is_empty() {
            self.settle(0, 1).await;
        }
        for process in &self.processes {
            process.close().await.expect("closed");
        }
        assert!(self.by_lease > 100, "{name}: {} by leases", self.by_lease);
        let other = direct::<str>(self.server.clone(), (self.row.1)(&self.units)).build().expect("limits");
        for user in USERS {
            let options = AcquireOptions::from(self.costs(0)).detail(Detail::All);
            for limit in other.peek(user, options).await.expect("an answer").limits() {
                let of = if limit.name() == "all" { "" } else { user };
                let admitted = self.admitted.get(&(limit.name().to_owned(), of)).copied().unwrap_or(0);
                let left = limit.limit().saturating_sub(admitted);
                // A shadow is charged as far as there is room.
                let is_equal = limit.remaining() == left || limit.is_shadow() && limit.remaining() < left;
                assert!(is_equal, "{name}, {user}: {admitted} admitted, {limit:?}");
            }
        }
        let [granted, spent, returned, lost] = *self.reported.lock().expect("no panic");
        assert_eq!((granted, lost), (spent + returned, 0), "{name}: {spent} spent, {returned} returned");
    }
}

/// Runs a random trace. Whenever a process is closed, `disturb` is called.
async fn run(server: RedisServer, seed: u64, row: Row, steps: u64, mut disturb: impl FnMut(&Redis<str>)) {
    let mut random = Random::new(seed);
    let mut trace = Trace::new(server, row, random.between(500, 1_500));
    for _ in 0..steps {
        match random.below(250) {
            0 => {
                let closed = random.index(2);
                trace.processes[closed].close().await.expect("closed");
                disturb(&trace.processes[closed]);
                trace.processes[closed] = trace.process();
            }
            // Buckets keep their usage in time.
            1 if ["fixed window", "tiers"].contains(&row.0) => trace.double(),
            2..=6 if !trace.held.is_empty() => {
                let (index, actual) = (random.index(trace.held.len()), random.below(5));
                trace.settle(index, actual).await;
            }
            _ => trace.request(&mut random).await,
        }
    }
    trace.end().await;
}

#[tokio::test]
async fn leases_charge_each_unit_once_at_each_limit() {
    let server = Server::start();
    for (seed, row) in (1..).zip(rows()) {
        server.command(&["FLUSHALL"]);
        run(server.open(), seed, row, 700, |_| {}).await;
    }
}

/// The key of the first user moves from node to node of a cluster, with what leases hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_charge_each_unit_once_while_slots_move() {
    let cluster = Cluster::start();
    for (seed, row) in (1..).zip(rows()).filter(|(_, row)| ["fixed window", "user and all"].contains(&row.0)) {
        cluster.nodes.iter().for_each(|node| drop(node.command(&["FLUSHALL"])));
        let (mut moves, mut at) = (0, None);
        run(cluster.open(), seed, row, 1_500, |process| {
            let name = if row.0 == "user and all" { "user" } else { "default" };
            let key = process.redis_key(name, USERS[0]).expect("a limit");
            let from = at.unwrap_or_else(|| cluster.first_master_of(&key));
            let to = (from + 1) % MASTERS;
            tokio::task::block_in_place(|| {
                cluster.migrate(cluster.slot(&key), from, to, Duration::from_millis(10));
            });
            (moves, at) = (moves + 1, Some(to));
        })
        .await;
        assert!(moves > 1, "{}: {moves} moves", row.0);
    }
}
