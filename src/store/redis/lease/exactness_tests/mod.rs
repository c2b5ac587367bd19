//! Leases of several limits admit no more than each limit's algorithm, whatever the schedule: processes with late clocks,
//! reports that are lost, repeated, delayed and reordered, processes that die, threads that are suspended while they
//! spend. The processes run the code of the crate. The server, which answers as the scripts do (`server_model`), and the
//! auditor are independent of it.

#[allow(dead_code, reason = "the program in `oracle` uses all of it")]
#[path = "../../../../../oracle/src/model.rs"]
mod oracle_model;
mod server;
mod usage;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::oracle_model::{Job, bucket_excess};
use self::server::Server;
use self::usage::Kind;
use super::{Lease, LeaseBook, LeaseClock, LeasePart, LeaseRenewal, LeaseReply};
use crate::clock::{Clock, Timestamp};
use crate::decision::AcquireOptions;
use crate::encode::EncodeKey as _;
use crate::mistake::Mistake;
use crate::observe::Observers;
use crate::store::redis::script::LimitSet;

/// The duration of leases, in microseconds.
const DURATION: u64 = 100_000;
const MAX_SHARE: f64 = 0.5;
const PROCESSES: usize = 3;
const USERS: u32 = 2;

struct Quota {
    /// The tokens of a bucket in each second.
    rate: u64,
    /// The burst of a bucket, or the limit of a window.
    burst: u64,
    is_shadow: bool,
}

impl Quota {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
    fn max_held(&self) -> u64 {
        (self.burst as f64 * MAX_SHARE) as u64
    }
}

/// Each user's, that of all users, and a shadow of all users.
static QUOTAS: [Quota; 3] = [
    Quota { rate: 2_000, burst: 100, is_shadow: false },
    Quota { rate: 3_000, burst: 150, is_shadow: false },
    Quota { rate: 500, burst: 40, is_shadow: true },
];

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// Acquires several times.
    Acquire {
        process: usize,
        user: u32,
        cost: u64,
        times: u32,
    },
    /// Acquires, is suspended after the costs were taken, and meanwhile the process's reports reach the server.
    Suspend {
        process: usize,
        user: u32,
        micros: u64,
    },
    /// The process makes the reports that are due.
    Report {
        process: usize,
    },
    /// The server receives a report.
    Arrive {
        report: usize,
    },
    /// The process receives the reply to a report.
    Reply {
        report: usize,
    },
    Lose {
        report: usize,
    },
    /// The server receives a report that was lost or answered before.
    Repeat {
        report: usize,
    },
    Die {
        process: usize,
    },
    /// The server lets leases yield from now on, or no longer.
    Yield(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (process, user, report) = (0..PROCESSES, 0..USERS, 0..64_usize);
    let step = prop_oneof![
        8 => (0..DURATION / 20).prop_map(Step::Wait),
        8 => (process.clone(), user.clone(), prop_oneof![4 => Just(1), 1 => 2..=3_u64], 1..64_u32)
            .prop_map(|(process, user, cost, times)| Step::Acquire { process, user, cost, times }),
        1 => (process.clone(), user, 0..2 * DURATION)
            .prop_map(|(process, user, micros)| Step::Suspend { process, user, micros }),
        8 => process.clone().prop_map(|process| Step::Report { process }),
        3 => report.clone().prop_map(|report| Step::Arrive { report }),
        9 => report.clone().prop_map(|report| Step::Reply { report }),
        1 => report.clone().prop_map(|report| Step::Lose { report }),
        2 => report.prop_map(|report| Step::Repeat { report }),
        1 => process.prop_map(|process| Step::Die { process }),
        3 => prop_oneof![1 => Just(true), 2 => Just(false)].prop_map(Step::Yield),
    ];
    vec(step, 100..500)
}

/// The clock of a process: late by at most 8 % of each span, which the margin of 10 % covers. Its first reading after
/// `suspend` runs what happens meanwhile.
struct LateClock {
    time: Arc<AtomicU64>,
    percent: u64,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl LateClock {
    fn suspend(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().expect("no panic") = Some(Box::new(meanwhile));
    }
}

impl Clock for LateClock {
    fn now(&self) -> Timestamp {
        let meanwhile = self.meanwhile.lock().expect("no panic").take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        Timestamp::from_micros(START + (self.time.load(Ordering::Relaxed) - START) * self.percent / 100)
    }
}

const START: u64 = 1_000_000_000;

/// A report that was sent and not answered yet.
struct Sent {
    limit: usize,
    key: Vec<u8>,
    numbers: [u64; 7],
    /// `None` if the process waits for no reply.
    renewal: Option<LeaseRenewal>,
    reply: Option<LeaseReply>,
}

impl Sent {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers below 2^53")]
    fn new(renewal: LeaseRenewal) -> Self {
        let (limit, key) = (renewal.quota.entry.limit, renewal.key.to_vec());
        Self { limit, key, numbers: renewal.encode().map(|number| number as u64), renewal: Some(renewal), reply: None }
    }

    fn arrive(&mut self, server: &Mutex<Server>, now: u64) {
        let reply = server.lock().expect("no panic").renew(self.limit, &self.key, self.numbers, now);
        self.reply.get_or_insert(reply);
    }
}

struct World {
    kind: Kind,
    time: Arc<AtomicU64>,
    server: Arc<Mutex<Server>>,
    limits: Arc<LimitSet>,
    processes: Vec<(Arc<LeaseBook>, Arc<LateClock>)>,
    sent: Arc<Mutex<Vec<Sent>>>,
    /// For each limit the users and times of the charged units.
    logs: [Vec<(u32, u64)>; 3],
    leased: u64,
}

impl World {
    fn new(kind: Kind) -> Self {
        let limits = ["user", "all", "trial"].into_iter().zip(&QUOTAS);
        let infos = limits.map(|(name, quota)| kind.info(name, quota)).collect();
        let mut world = Self {
            kind,
            time: Arc::new(AtomicU64::new(START)),
            server: Arc::new(Mutex::new(Server::new(kind))),
            limits: Arc::new(LimitSet::new(0, infos, true, Duration::from_secs(10))),
            processes: Vec::new(),
            sent: Arc::default(),
            logs: Default::default(),
            leased: 0,
        };
        world.processes = (0..PROCESSES).map(|number| world.process(number)).collect();
        world
    }

    fn process(&self, number: usize) -> (Arc<LeaseBook>, Arc<LateClock>) {
        // A lease has no end by a clock that is half as fast.
        let percent = mistake!(EndOfLeaseIsNotChecked, 50, 92 + 4 * number as u64);
        let clock = LateClock { time: Arc::clone(&self.time), percent, meanwhile: Mutex::default() };
        let clock = Arc::new(clock);
        let lease = Lease::new(Duration::from_micros(DURATION)).max_share(MAX_SHARE).max_keys(8);
        let of_book = LeaseClock::new(Some(Arc::<LateClock>::clone(&clock)));
        let limits = Arc::clone(&self.limits);
        let book = LeaseBook::new(lease, limits, of_book, "model", &Observers::default());
        (Arc::new(book.expect("leases")), clock)
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Wait(micros) => {
                self.time.fetch_add(micros, Ordering::Relaxed);
            }
            Step::Acquire { process, user, cost, times } => (0..times).for_each(|_| self.acquire(process, user, cost)),
            Step::Suspend { process, user, micros } => {
                let (book, clock) = &self.processes[process];
                let (book, time) = (Arc::clone(book), Arc::clone(&self.time));
                let (server, sent) = (Arc::clone(&self.server), Arc::clone(&self.sent));
                clock.suspend(move || {
                    time.fetch_add(micros, Ordering::Relaxed);
                    let mut reports: Vec<_> = book.take_due(true).into_iter().map(Sent::new).collect();
                    for report in &mut reports {
                        report.arrive(&server, time.load(Ordering::Relaxed));
                    }
                    sent.lock().expect("no panic").append(&mut reports);
                });
                self.acquire(process, user, 1);
                // A wrong decision has not read the clock.
                *self.processes[process].1.meanwhile.lock().expect("no panic") = None;
            }
            Step::Report { process } => {
                let reports = self.processes[process].0.take_due(true).into_iter().map(Sent::new);
                self.sent.lock().expect("no panic").extend(reports);
            }
            Step::Arrive { report } => self.on_report(report, true, Sent::arrive),
            Step::Repeat { report } => self.on_report(report, false, Sent::arrive),
            Step::Reply { report } => self.on_report(report, true, |sent, server, now| {
                if sent.reply.is_none() {
                    sent.arrive(server, now);
                }
                if let (Some(renewal), Some(reply)) = (sent.renewal.take(), sent.reply) {
                    renewal.finish(reply, now, None);
                }
            }),
            Step::Lose { report } => self.on_report(report, true, |sent, _, _| drop(sent.renewal.take())),
            Step::Yield(yields) => self.server.lock().expect("no panic").yields = yields,
            Step::Die { process } => self.processes[process] = self.process(process),
        }
    }

    /// Runs an action on a report: of those that wait for a reply, or of the latest ones.
    fn on_report(&self, report: usize, waits: bool, action: impl FnOnce(&mut Sent, &Mutex<Server>, u64)) {
        let mut sent = self.sent.lock().expect("no panic");
        let latest = sent.len().saturating_sub(8);
        let mut reports: Vec<_> = sent[latest..].iter_mut().filter(|sent| !waits || sent.renewal.is_some()).collect();
        if !reports.is_empty() {
            let index = report % reports.len();
            action(reports[index], &self.server, self.now());
        }
    }

    fn acquire(&mut self, process: usize, user: u32, cost: u64) {
        let keys = keys_of(user);
        let book = Arc::clone(&self.processes[process].0);
        let options = AcquireOptions::cost(cost);
        let part = |(limit, key): (usize, &String)| book.part(limit, options, |hasher| key.hash_key(hasher));
        let parts: Vec<_> = keys.iter().enumerate().map(part).collect();
        let keys: Vec<_> = keys.into_iter().map(String::into_bytes).collect();
        let by_lease = decide(&book, &parts);
        self.leased += u64::from(by_lease.is_some());
        let charged = by_lease.or_else(|| {
            let new_lease = |limit: usize| Some((keys[limit].as_slice().into(), book.quota(limit, None)?));
            book.count_demand(&parts, new_lease);
            self.server.lock().expect("no panic").decide(&keys, cost, self.now())
        });
        for (limit, is_charged) in charged.into_iter().flatten().enumerate() {
            let entry = (if limit == 0 { user } else { 0 }, self.now());
            self.logs[limit].extend((0..cost).filter(|_| is_charged).map(|_| entry));
        }
    }

    /// The units that were admitted beyond the bound of each limit.
    fn beyond(&self) -> Vec<u64> {
        let server = self.server.lock().expect("no panic");
        let beyond = |(limit, log): (usize, &Vec<(u32, u64)>)| {
            let of_key = |user: u32| {
                let times: Vec<_> = log.iter().filter(|entry| entry.0 == user).map(|entry| entry.1).collect();
                if self.kind != Kind::Bucket {
                    return server.beyond(limit, keys_of(user)[limit].as_bytes(), &times);
                }
                let jobs: Vec<_> = times.iter().map(|time| Job { begin: *time, end: *time, cost: 1 }).collect();
                bucket_excess(&jobs, QUOTAS[limit].rate, QUOTAS[limit].burst).len() as u64
            };
            (0..USERS).map(of_key).sum()
        };
        self.logs.iter().enumerate().map(beyond).collect()
    }
}

/// The keys of a user at all limits.
fn keys_of(user: u32) -> [String; 3] {
    [format!("user-{user}"), String::new(), String::new()]
}

/// Runs random schedules. Returns in how many of them leases decided, or the first schedule that exceeds a bound, which is
/// made simpler in so many attempts.
fn explore(kind: Kind, schedules: u32, max_shrink_iters: u32) -> Result<u32, String> {
    let leasing = AtomicU32::new(0);
    let config = Config { cases: schedules, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let explored = TestRunner::new(config).run(&steps(), |steps| {
        let mut world = World::new(kind);
        for step in &steps {
            world.run(step);
        }
        leasing.fetch_add(u32::from(world.leased > 0), Ordering::Relaxed);
        let beyond = world.beyond();
        prop_assert!(beyond.iter().all(|units| *units == 0), "beyond the limits: {:?}", beyond);
        Ok(())
    });
    explored.map_err(|error| error.to_string())?;
    Ok(leasing.into_inner())
}

/// Returns for each limit whether the leases charge it: a limit that is no shadow, always.
fn decide(book: &LeaseBook, parts: &[LeasePart]) -> Option<Vec<bool>> {
    if mistake!(OneLeaseSuffices) {
        return book.decide::<3>(&parts[..1], AcquireOptions::default()).map(|_| vec![true; QUOTAS.len()]);
    }
    let decision = book.decide::<3>(parts, AcquireOptions::default())?;
    let limits = QUOTAS.iter().zip(decision.limits());
    Some(limits.map(|(quota, limit)| !quota.is_shadow || limit.verdict().is_allowed()).collect())
}

const SCHEDULES: u32 = 40;

/// Leases decide in a third of the schedules of each algorithm, or more. So with any seed, schedules in which they decide
/// nothing, which would prove nothing, are not all: the probability is below 10^-6.
#[test]
fn no_schedule_exceeds_a_limit() {
    for kind in Kind::ALL {
        let leasing = explore(kind, SCHEDULES, 50).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        println!("{kind:?}: leases decide in {leasing} of {SCHEDULES} schedules");
        assert!(leasing > 0, "{kind:?}: leases decide nothing");
    }
}

/// The control. Some thirty schedules find each mistake, so 3,000 do with any seed.
#[test]
fn mistakes_are_found() {
    let mistakes = [
        Mistake::OneLeaseSuffices,
        Mistake::EndOfLeaseIsNotChecked,
        Mistake::GrantIsCharged,
        Mistake::ReportIsAppliedAgain,
        Mistake::ReleasedUnitsAreSubtractedTwice,
        Mistake::HeldCostsDoNotCount,
        Mistake::KeyExpiresWithItsUsage,
    ];
    for (index, mistake) in mistakes.iter().enumerate() {
        // The mistakes do not depend on the usage. Two kinds of usage for each mistake cover all kinds.
        for kind in [index, index + 3].map(|kind| Kind::ALL[kind % 6]) {
            let found = mistake.make(|| explore(kind, 3_000, 0));
            let error = found.expect_err(&format!("{mistake:?}, {kind:?}: an admission beyond a limit"));
            assert!(error.contains("beyond the limits"), "{mistake:?}, {kind:?}: {error}");
        }
    }
}
