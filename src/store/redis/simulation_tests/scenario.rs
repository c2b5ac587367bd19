//! What happens in one simulation: the calls, the faults and the link, chosen by the seed.

use super::quota::{Form, Quota};
use super::world::Link;
use crate::random::Random;
use crate::store::redis::connect::MIN_CONNECT_TIMEOUT;

/// The times of the link are in microseconds. All other times are in whole milliseconds, the resolution of tokio's timer.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) deadline: u64,
    pub(super) hold_expiry: u64,
    pub(super) quotas: Vec<Quota>,
    /// The limiters decide by leases of this duration and share.
    pub(super) lease: Option<(u64, f64)>,
    /// How the leases end.
    pub(super) lease_end: LeaseEnd,
    /// The limiters, each of which stands for a process.
    pub(super) clients: usize,
    pub(super) link: Link,
    /// No two calls of a client have the same key, cost and kind, so the server's log names the call.
    pub(super) has_unique_costs: bool,
    /// In the order of their times.
    pub(super) calls: Vec<Call>,
    pub(super) faults: Vec<Fault>,
    /// Another thread runs the connection's task while a caller polls its call.
    pub(super) is_threaded: bool,
    /// When the last fault ends.
    pub(super) faults_end: u64,
    /// When a client replaces its limits by the same ones.
    pub(super) replaces: Vec<(u64, usize)>,
    /// Some guards live longer than until this time, some time after all faults and all other calls.
    pub(super) guards_until: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseEnd {
    /// No process uses them any more.
    Idle,
    /// Each process closes its limiter at this time, and goes on to use it.
    Closed { at: u64 },
    /// Each process drops its limiter after its last call. There are no calls after the faults.
    Dropped,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) at: u64,
    pub(super) client: usize,
    pub(super) key: u64,
    pub(super) cost: u64,
    pub(super) kind: Kind,
    /// The caller drops the future after this time.
    pub(super) leaves_after: Option<u64>,
    /// The polls of other tasks before the call.
    pub(super) yields: u64,
    /// All faults ended so long ago that the call must be answered.
    pub(super) is_after_recovery: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Decide,
    Peek,
    /// A hold that ends after this time.
    Hold(u64, HoldEnd),
    /// A request with this id, which is charged once.
    Once(u64),
    /// A hold with this id.
    Reserve(u64),
    /// The settlement of a hold with this id, and the actual cost.
    SettleId(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HoldEnd {
    Settle(u64),
    /// The caller does not wait for the confirmation.
    SettleAndLeave(u64),
    Release,
    DropGuard,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) at: u64,
    pub(super) lasts: u64,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// All connections are reset. Data in flight is lost, but for so many bytes of the next reply.
    Cut(usize),
    /// The next request during the fault is cut after so many bytes, and its connection is reset.
    CutInRequest(usize),
    /// The connection of the next call during the fault is reset after its run, and after so many bytes of the reply.
    CutInReply(usize),
    /// Open connections lose all data to the server, to the client, or both. New ones are not established.
    HalfOpen {
        to_server: bool,
        to_client: bool,
    },
    /// No data arrives before the end.
    Delay,
    /// The server runs nothing: SIGSTOP, or CLIENT PAUSE.
    Pause,
    /// The server is down, and then loads its data for a while.
    Crash {
        keeps_data: bool,
        refuses: bool,
        loading: u64,
    },
    FlushScripts,
    OutOfMemory,
    Busy,
    /// A replica that lags by this time becomes the master. Open connections lead to the old one.
    FailOver(u64),
    /// A key holds a foreign value.
    Foreign(u64),
    /// The client's thread runs nothing.
    Stall,
    /// The server's clock is set forward by this time.
    ClockStep(u64),
    /// The server's clock runs faster, by so many percent.
    ClockSlew(u64),
}

impl FaultKind {
    pub(super) fn is_of_clock(self) -> bool {
        matches!(self, Self::ClockStep(_) | Self::ClockSlew(_))
    }
}

impl Call {
    /// A decision of the first client on the first key.
    pub(super) fn decision(at: u64, cost: u64) -> Self {
        let (leaves_after, yields, is_after_recovery) = (None, 0, false);
        Self { at, client: 0, key: 0, cost, kind: Kind::Decide, leaves_after, yields, is_after_recovery }
    }
}

impl Scenario {
    pub(super) const KEYS: u64 = 3;
    /// The time between two trials of an open circuit breaker, at most.
    const TRIAL_INTERVAL: u64 = 300;

    pub(super) fn has_clock_fault(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind.is_of_clock())
    }

    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let deadline = random.between(10, 60);
        // The first decision takes four round trips: to open a connection, to set it up, and to send the script. A link
        // of the others has a round trip of at most half of the deadline.
        let part = if random.percent(70) { 17 } else { 8 };
        let one_way = random.below(deadline / part + 1);
        let jitter = if random.percent(50) { random.below(deadline / part + 1) } else { 0 };
        let limits = if random.percent(25) { 2 } else { 1 };
        let lease = random.percent(25).then(|| (random.between(10, 200), [0.25, 0.5, 1.0][random.index(3)]));
        let quotas = (0..limits).map(|_| quota(if lease.is_some() { 4 } else { 1 }, &mut random)).collect();
        let mut scenario = Self {
            seed,
            deadline,
            hold_expiry: random.between(100, 400),
            quotas,
            lease,
            lease_end: LeaseEnd::Idle,
            clients: if random.percent(30) { 2 } else { 1 },
            link: Link {
                delay: one_way * 1000,
                jitter: jitter * 1000,
                per_operation: if random.percent(20) { random.between(100, 3_000) } else { 0 },
                ..Link::default()
            },
            has_unique_costs: random.percent(if lease.is_some() { 25 } else { 75 }),
            calls: Vec::new(),
            faults: Vec::new(),
            is_threaded: random.percent(30),
            faults_end: 0,
            replaces: Vec::new(),
            guards_until: None,
        };
        // The circuit breaker can open twice in a long span.
        let span = if random.percent(20) { random.between(500, 3_000) } else { random.between(50, 500) };
        scenario.add_faults(span, &mut random);
        scenario.add_replaces(span);
        scenario.add_load(span, &mut random);
        scenario.add_calls_after_faults(span, &mut random);
        if lease.is_some() {
            scenario.lease_end = match random.below(3) {
                0 => LeaseEnd::Idle,
                1 => LeaseEnd::Closed { at: random.below(2 * span) },
                _ => LeaseEnd::Dropped,
            };
        }
        if scenario.lease_end == LeaseEnd::Dropped {
            scenario.calls.retain(|call| call.at < span);
        }
        scenario.calls.sort_by_key(|call| call.at);
        scenario.add_long_guards(span);
        scenario
    }

    /// These calls only: of one client, near a server without a fault.
    pub(super) fn of_calls(quota: Quota, calls: Vec<Call>) -> Self {
        Self {
            seed: 1,
            deadline: 50,
            hold_expiry: 400,
            quotas: vec![quota],
            lease: None,
            lease_end: LeaseEnd::Idle,
            clients: 1,
            link: Link::default(),
            has_unique_costs: false,
            calls,
            faults: Vec::new(),
            is_threaded: false,
            faults_end: 0,
            replaces: Vec::new(),
            guards_until: None,
        }
    }

    /// The time after the end of the last fault by which all decisions are answered again.
    ///
    /// A connection that was being opened during the fault times out. If the breaker is open, the next trial closes it. The
    /// connection may be half open: it is given up after two deadlines.
    pub(super) fn recovery(&self) -> u64 {
        let connect = u64::try_from(MIN_CONNECT_TIMEOUT.as_millis()).expect("a short time");
        connect + 7 * self.call_interval()
    }

    /// The time between two of the calls by which the client notices lost connections, and closes its breaker.
    fn call_interval(&self) -> u64 {
        Self::TRIAL_INTERVAL + self.deadline
    }

    /// Whether the server and the link are fast enough for every call, also for the first one: to connect takes two round
    /// trips, a call without the script two, and the batch behind the first calls one.
    pub(super) fn is_fast(&self) -> bool {
        let Link { delay, jitter, per_operation, .. } = self.link;
        per_operation == 0 && 10 * (delay + jitter) < self.deadline * 1000
    }

    fn add_faults(&mut self, span: u64, random: &mut Random) {
        let count = [0, 1, 1, 1, 2, 3][random.index(6)];
        for _ in 0..count {
            let kind = self.fault(random);
            let at = random.between(1, span);
            let long = if random.percent(20) { 2_500 } else { 6 * self.deadline };
            let lasts = match kind {
                FaultKind::Stall => random.between(1, 3 * self.deadline),
                FaultKind::Cut(_) | FaultKind::FlushScripts | FaultKind::FailOver(_) | FaultKind::ClockStep(_) => 0,
                _ => random.between(1, long),
            };
            self.faults.push(Fault { at, lasts, kind });
        }
        let ends = self.faults.iter().map(|fault| match fault.kind {
            FaultKind::Crash { loading, .. } => fault.at + fault.lasts + loading,
            _ => fault.at + fault.lasts,
        });
        self.faults_end = ends.max().unwrap_or(0);
    }

    fn add_replaces(&mut self, span: u64) {
        let mut random = Random::new(self.seed ^ 0x9e91);
        if self.lease.is_none() && random.percent(25) {
            let count = random.between(1, 4);
            self.replaces = (0..count).map(|_| (random.below(span), random.index(self.clients))).collect();
        }
    }

    fn add_long_guards(&mut self, span: u64) {
        let mut random = Random::new(self.seed ^ 0x10f6);
        if self.lease.is_none() && random.percent(30) {
            let until = self.faults_end.max(span) + self.recovery() + 3 * (self.deadline + self.hold_expiry) + 100;
            self.guards_until = Some(until);
            let holds = self.calls.iter_mut().filter(|call| matches!(call.kind, Kind::Hold(..)) && call.at < span);
            for call in holds.take(3) {
                if let Kind::Hold(lasts, _) = &mut call.kind {
                    *lasts = until + 1 - call.at;
                }
            }
        }
    }

    fn fault(&self, random: &mut Random) -> FaultKind {
        let bytes = random.index(40);
        // A lease may be spent beyond its expiry if the server's clock steps: see docs/leases.md.
        match random.below(if self.lease.is_some() { 14 } else { 17 }) {
            0 => FaultKind::Cut(bytes),
            1 => FaultKind::CutInRequest(random.index(400)),
            2 => FaultKind::CutInReply(bytes),
            3 => FaultKind::HalfOpen { to_server: true, to_client: true },
            4 => FaultKind::HalfOpen { to_server: false, to_client: true },
            5 => FaultKind::Delay,
            6 => FaultKind::Pause,
            7 => FaultKind::Crash { keeps_data: true, refuses: random.percent(50), loading: random.below(100) },
            8 => FaultKind::Crash { keeps_data: false, refuses: random.percent(50), loading: 0 },
            9 => FaultKind::FlushScripts,
            10 => [FaultKind::OutOfMemory, FaultKind::Busy][random.index(2)],
            11 => FaultKind::FailOver(random.below(2 * self.deadline)),
            12 => FaultKind::Foreign(random.below(Self::KEYS)),
            14 | 15 => FaultKind::ClockStep(random.between(1, 5 * self.deadline)),
            16 => FaultKind::ClockSlew(random.between(1, 10)),
            _ => FaultKind::Stall,
        }
    }

    /// Returns the microseconds that have passed on the server's clock, at a time since the start.
    pub(super) fn server_time(&self, at: u64) -> u64 {
        let gained = self.faults.iter().map(|fault| {
            let elapsed = at.saturating_sub(fault.at * 1000);
            match fault.kind {
                FaultKind::ClockStep(millis) if elapsed > 0 => millis * 1000,
                FaultKind::ClockSlew(percent) => elapsed.min(fault.lasts * 1000) * percent / 100,
                _ => 0,
            }
        });
        at.saturating_add(gained.sum())
    }

    fn add_load(&mut self, span: u64, random: &mut Random) {
        // A key gets a lease for sixteen decisions within one duration.
        let count = if self.lease.is_some() { random.between(60, 200) } else { random.between(5, 50) };
        let is_hot = self.lease.is_some() && random.percent(70);
        let burst = random.percent(30).then(|| random.below(span));
        for index in 0..count {
            let at = burst.filter(|_| random.percent(70)).unwrap_or_else(|| random.below(span));
            let kind = match random.below(10) {
                0 => Kind::Peek,
                1..=3 => Kind::Hold(random.below(2 * self.hold_expiry), HoldEnd::Release),
                _ => Kind::Decide,
            };
            let cost = if self.has_unique_costs { 1 + index } else { random.between(1, 2) };
            self.calls.push(Call {
                at,
                client: random.index(self.clients),
                key: if is_hot && random.percent(70) { 0 } else { random.below(Self::KEYS) },
                cost,
                kind: kind.with_end(cost, random),
                leaves_after: random.percent(10).then(|| random.below(self.deadline)),
                yields: random.below(3),
                is_after_recovery: false,
            });
        }
        if self.has_unique_costs {
            // Small costs: a quota admits several.
            let mut used = std::collections::BTreeMap::new();
            for call in &mut self.calls {
                let next: &mut u64 = used.entry((call.client, call.key, call.kind.name())).or_default();
                *next += 1;
                call.cost = *next;
                call.kind = call.kind.with_end(call.cost, random);
            }
        }
    }

    /// Calls by which the client notices lost connections, and then calls that must be answered.
    pub(super) fn add_calls_after_faults(&mut self, span: u64, random: &mut Random) {
        let faults_end = self.faults_end.max(span);
        let call = |at, client, cost| Call { client, key: Self::KEYS, ..Call::decision(at, cost) };
        let mut calls = Vec::new();
        for client in 0..self.clients {
            for index in 0..7 {
                calls.push(call(faults_end + index * self.call_interval(), client, 1 + index));
            }
            for index in 0..3 {
                let at = faults_end + self.recovery() + index * (self.deadline + random.below(20));
                let mut call = Call { is_after_recovery: true, ..call(at, client, 8 + index) };
                if index == 1 {
                    call.kind = Kind::Hold(random.below(50), HoldEnd::Release).with_end(call.cost, random);
                }
                calls.push(call);
            }
        }
        self.calls.extend(calls);
    }
}

/// The units and the period of a bucket are rarely multiples of each other, so a token takes a fraction of a
/// microsecond to refill.
fn quota(scale: u64, random: &mut Random) -> Quota {
    let (units, period) = (random.between(5, 200 * scale), random.between(20, 2_000) * 1000);
    let burst = random.between(5, 200 * scale);
    let form = if random.percent(50) { Form::TokenBucket { burst } } else { Form::FixedWindow };
    Quota { units, period, form }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Peek => "peek",
            Self::Hold(..) => "hold",
            Self::Once(_) => "once",
            Self::Reserve(_) => "reserve",
            Self::SettleId(..) => "settle",
        }
    }

    /// Chooses how a hold of this cost ends.
    fn with_end(self, cost: u64, random: &mut Random) -> Self {
        let Self::Hold(lasts, _) = self else { return self };
        let actual = random.below(2 * cost + 1);
        Self::Hold(
            lasts,
            match random.below(4) {
                0 => HoldEnd::Settle(actual),
                1 => HoldEnd::SettleAndLeave(actual),
                2 => HoldEnd::Release,
                _ => HoldEnd::DropGuard,
            },
        )
    }
}
