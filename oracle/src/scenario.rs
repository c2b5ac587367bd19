//! The scenarios: servers, their faults, and deliberate mistakes of the processes.

use std::time::Duration;

/// What happens to the servers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The masters run no commands for a while.
    Pause,
    /// A master is stopped.
    Stall,
    /// The masters close all connections.
    Cut,
    ForgetScripts,
    /// kill -9. The disk has each answered charge.
    Restart,
    /// The same without a disk: all data is lost.
    RestartEmpty,
    /// A master is killed.
    FailOver,
    /// The same while its replica lags.
    FailOverLagging,
    /// A master waits until its replica has all data, so nothing is lost.
    HandOver,
    /// The other client deletes its keys.
    Relieve,
}

impl Fault {
    /// Whether all data may be lost.
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::RestartEmpty | Self::FailOver | Self::FailOverLagging)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Servers {
    /// With arguments.
    Single(&'static [&'static str]),
    Tls,
    /// With a policy of eviction, and another client that fills the memory.
    Full(&'static str),
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) servers: Servers,
    /// After each one, a process is killed, and one is stopped.
    pub(crate) faults: &'static [Fault],
    pub(crate) hold_expiry: Duration,
    /// A deliberate mistake of the processes, which must exceed a bound, or nothing.
    pub(crate) mistake: &'static str,
}

const SHORT: Duration = Duration::from_secs(5);
/// For servers that are away for seconds.
const LONG: Duration = Duration::from_secs(10);
const PLAIN: Servers = Servers::Single(&[]);

const fn scenario(
    name: &'static str,
    servers: Servers,
    faults: &'static [Fault],
    hold_expiry: Duration,
    mistake: &'static str,
) -> Scenario {
    Scenario { name, servers, faults, hold_expiry, mistake }
}

use Fault::{Cut, FailOver, FailOverLagging, ForgetScripts, HandOver, Pause, Relieve, Restart, RestartEmpty, Stall};

const USUAL: &[Fault] = &[Pause, Cut, Stall, ForgetScripts];
const DURABLE: Servers = Servers::Single(&["--appendonly", "yes", "--appendfsync", "always"]);

pub(crate) const SCENARIOS: [Scenario; 13] = [
    scenario("single", PLAIN, USUAL, SHORT, ""),
    scenario("restart", DURABLE, &[Restart, Cut, Stall], LONG, ""),
    scenario("restart-empty", PLAIN, &[RestartEmpty, Cut], LONG, ""),
    scenario("tls", Servers::Tls, USUAL, SHORT, ""),
    scenario("sentinel", Servers::Sentinel, &[FailOver, Cut, FailOverLagging], LONG, ""),
    scenario("cluster", Servers::Cluster, &[FailOver, HandOver, FailOverLagging], LONG, ""),
    scenario("cluster-handover", Servers::Cluster, &[HandOver, Cut, HandOver, Pause], LONG, ""),
    scenario("allkeys-lru", Servers::Full("allkeys-lru"), &[Cut, Pause], SHORT, ""),
    scenario("volatile-ttl", Servers::Full("volatile-ttl"), &[Cut, Pause], SHORT, ""),
    // Nothing is evicted, so decisions fail until the other client's keys are deleted.
    scenario("noeviction", Servers::Full("noeviction"), &[Cut, Pause, Relieve], SHORT, ""),
    scenario("control-grant", PLAIN, USUAL, SHORT, "grant"),
    scenario("control-unsettled", PLAIN, USUAL, SHORT, "unsettled"),
    scenario("control-early", PLAIN, USUAL, SHORT, "early"),
];
