//! The servers of one scenario, and their faults.

use std::ffi::OsString;
use std::mem::swap;
use std::slice::from_ref;
use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::cluster_server::{Cluster, MASTERS};
use crate::model::Loss;
use crate::neighbour::{Losses, Neighbour};
use crate::process::wait_until;
use crate::random::Random;
use crate::scenario::{Fault, Servers};
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;
use crate::worker::now;

pub(crate) struct Deployment {
    servers: Running,
    certificates: Option<Certificates>,
    /// After the server, which ends it.
    _neighbour: Option<Neighbour>,
    losses: Losses,
}

enum Running {
    Single(Server),
    Sentinel(SentinelDeployment),
    /// With the master and the replica of each part.
    Cluster(Cluster, [[usize; 2]; MASTERS]),
}

impl Deployment {
    /// Starts the servers. A single server is this program.
    pub(crate) fn start(servers: Servers, program: &OsString) -> Self {
        let single = |arguments: &[&str]| Running::Single(Server::of(from_ref(program), arguments));
        let (losses, mut certificates, mut neighbour) = (Losses::default(), None, None);
        let servers = match servers {
            Servers::Single(arguments) => single(arguments),
            Servers::Tls => {
                let issued = certificates.insert(Certificates::issue());
                Running::Single(issued.server(false, &["--tls-auth-clients", "no"]))
            }
            Servers::Full(policy) => {
                let full = single(&["--maxmemory-policy", policy, "--notify-keyspace-events", "Ee"]);
                if let Running::Single(server) = &full {
                    neighbour = Some(Neighbour::start(server, &losses));
                }
                full
            }
            Servers::Sentinel => Running::Sentinel(SentinelDeployment::with_elections()),
            Servers::Cluster => {
                Running::Cluster(Cluster::with_elections(), std::array::from_fn(|index| [index, MASTERS + index]))
            }
        };
        Self { servers, certificates, _neighbour: neighbour, losses }
    }

    /// What the processes connect to.
    pub(crate) fn address(&self) -> String {
        match (&self.servers, &self.certificates) {
            (Running::Single(server), Some(certificates)) => {
                let port = server.tls_port().expect("a TLS port");
                format!("tls rediss://127.0.0.1:{port} {}", certificates.folder.file("ca.pem"))
            }
            (Running::Single(server), None) => format!("single {}", server.address()),
            (Running::Sentinel(deployment), _) => format!("sentinel {}", deployment.addresses().join(",")),
            (Running::Cluster(cluster, _), _) => format!("cluster {}", cluster.addresses().join(",")),
        }
    }

    /// The losses of all data, and of single keys with the limit and the key.
    pub(crate) fn losses(&self) -> Vec<(Option<(String, String)>, Loss)> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn masters(&self) -> Vec<&Server> {
        match &self.servers {
            Running::Single(server) => vec![server],
            Running::Sentinel(deployment) => vec![&deployment.master],
            Running::Cluster(cluster, pairs) => pairs.iter().map(|pair| &cluster.nodes[pair[0]]).collect(),
        }
    }

    /// Before the last seconds: the memory suffices.
    pub(crate) fn recover(&self) {
        for master in self.masters() {
            master.command(&["CONFIG", "SET", "maxmemory", "0"]);
        }
    }

    pub(crate) fn suffer(&mut self, fault: Fault, random: &mut Random) {
        let (begin, losses) = (now(), Arc::clone(&self.losses));
        match fault {
            Fault::Pause => self.each_master(|master| master.pause(Duration::from_millis(200))),
            Fault::Cut => self.each_master(|master| drop(master.command(&["CLIENT", "KILL", "TYPE", "normal"]))),
            Fault::ForgetScripts => self.each_master(|master| drop(master.command(&["SCRIPT", "FLUSH"]))),
            Fault::Stall => {
                let masters = self.masters();
                let master = masters[random.index(masters.len())];
                master.signal("-STOP");
                sleep(Duration::from_millis(600));
                master.signal("-CONT");
            }
            Fault::Relieve => self.each_master(|master| {
                let keys = master.keys().into_iter().filter(|key| key.starts_with("filler:")).collect::<Vec<_>>();
                master.command(&["UNLINK"].into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
            }),
            Fault::Restart | Fault::RestartEmpty => {
                if let Running::Single(server) = &mut self.servers {
                    server.kill();
                    sleep(Duration::from_millis(200));
                    server.restart();
                }
            }
            Fault::FailOver | Fault::FailOverLagging | Fault::HandOver => match &mut self.servers {
                Running::Single(_) => unreachable!("a single server has no replica"),
                Running::Sentinel(deployment) => fail_over(deployment, fault),
                Running::Cluster(cluster, pairs) => take_over(cluster, pairs, fault, random),
            },
        }
        if fault.is_loss() {
            let loss = Loss { begin, end: now() };
            losses.lock().unwrap_or_else(PoisonError::into_inner).push((None, loss));
        }
    }

    fn each_master(&self, suffers: impl Fn(&Server)) {
        self.masters().into_iter().for_each(suffers);
    }
}

/// Kills the master. It returns as the replica of the other server.
fn fail_over(deployment: &mut SentinelDeployment, fault: Fault) {
    kill_and_replace(&mut deployment.master, &deployment.replica, fault);
    swap(&mut deployment.master, &mut deployment.replica);
    let port = deployment.master.port.to_string();
    deployment.replica.arguments.truncate(2);
    deployment.replica.arguments.extend(["--replicaof", "127.0.0.1", &port].map(str::to_owned));
    deployment.replica.restart();
    wait_until("the old master is in sync", || deployment.replica.is_replica_in_sync());
    deployment.wait_for_sentinels();
}

/// Exchanges a master and its replica.
fn take_over(cluster: &mut Cluster, pairs: &mut [[usize; 2]; MASTERS], fault: Fault, random: &mut Random) {
    let [master, replica] = &mut pairs[random.index(MASTERS)];
    if matches!(fault, Fault::HandOver) {
        let node = &cluster.nodes[*replica];
        if !node.command(&["CLUSTER", "FAILOVER"]).starts_with("+OK") {
            return;
        }
        wait_until("the replica takes over", || node.is_master());
    } else {
        let [dead, other] = cluster.nodes.get_disjoint_mut([*master, *replica]).expect("two nodes");
        kill_and_replace(dead, other, fault);
        dead.restart();
    }
    swap(master, replica);
    cluster.wait_for_replicas(pairs.iter().map(|pair| pair[1]));
}

fn kill_and_replace(master: &mut Server, replica: &Server, fault: Fault) {
    if matches!(fault, Fault::FailOverLagging) {
        replica.fall_behind();
    }
    master.kill();
    wait_until("the replica takes over", || replica.is_master());
    replica.command(&["CONFIG", "SET", "masterauth", ""]);
}
