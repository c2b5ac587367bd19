//! A Redis Cluster on the loopback interface.
#![allow(dead_code, reason = "each binary uses a part")]

use std::time::Duration;

use tower_ratelimit::RedisServer;

use crate::process::wait_until;
use crate::server::Server;

pub(crate) struct Cluster {
    /// Masters first; the replica of the master with index `i` has the index `MASTERS + i`.
    pub(crate) nodes: Vec<Server>,
}

pub(crate) const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

impl Cluster {
    /// Starts three masters.
    pub(crate) fn start() -> Self {
        Self::masters(MASTERS, |_| Server::node_with(&[]))
    }

    /// Starts this number of masters.
    pub(crate) fn masters(masters: usize, node: impl Fn(usize) -> Server) -> Self {
        let cluster = Self { nodes: (0..masters).map(node).collect() };
        cluster.meet(masters);
        cluster
    }

    /// Starts three masters with one replica each, which takes over by `Server::take_over`.
    pub(crate) fn with_replicas() -> Self {
        Self::replicated(&[])
    }

    /// Starts three masters with one replica each, which is elected two seconds after its master's last answer.
    pub(crate) fn with_elections() -> Self {
        Self::replicated(&["--cluster-node-timeout", "2000"])
    }

    fn replicated(arguments: &[&str]) -> Self {
        let cluster = Self { nodes: (0..2 * MASTERS).map(|_| Server::node_with(arguments)).collect() };
        cluster.meet(MASTERS);
        for master in 0..MASTERS {
            let id = cluster.id(master);
            let replica = &cluster.nodes[MASTERS + master];
            wait_until("a replica knows its master", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]).starts_with("+OK")
            });
        }
        cluster.wait_for_replicas(MASTERS..2 * MASTERS);
        cluster
    }

    /// Waits until these replicas can be elected.
    pub(crate) fn wait_for_replicas(&self, replicas: impl IntoIterator<Item = usize>) {
        for replica in replicas {
            wait_until("a replica is in sync", || self.nodes[replica].is_replica_in_sync());
        }
        // No replica is elected before every node knows every replica.
        for node in &self.nodes {
            wait_until("every node knows the replicas", || {
                node.command(&["CLUSTER", "NODES"]).matches("slave ").count() == MASTERS
            });
        }
    }

    fn meet(&self, masters: usize) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < masters {
                let (first, next) = (SLOTS * index / masters, SLOTS * (index + 1) / masters);
                // One by one, because Redis before 7.0 has no ADDSLOTSRANGE.
                let slots: Vec<_> = (first..next).map(|slot| slot.to_string()).collect();
                let add = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
                let added = node.command(&add.collect::<Vec<_>>());
                assert!(added.starts_with("+OK"), "{added}");
            }
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &self.nodes[0].port_of_servers().to_string()]);
        }
        let (all, masters) =
            (format!("cluster_known_nodes:{}\r", self.nodes.len()), format!("cluster_size:{masters}\r"));
        for node in &self.nodes {
            wait_until("the cluster is complete", || {
                let info = node.command(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&all) && info.contains(&masters)
            });
        }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Server::address).collect()
    }

    pub(crate) fn open(&self) -> RedisServer {
        RedisServer::cluster(self.addresses()).expect("addresses")
    }

    fn id(&self, node: usize) -> String {
        let reply = self.nodes[node].command(&["CLUSTER", "MYID"]);
        reply.split("\r\n").nth(1).expect("an id").to_owned()
    }

    pub(crate) fn slot(&self, key: &str) -> usize {
        // A node that was not killed.
        let mut living = self.nodes.iter().filter(|node| std::net::TcpStream::connect(node.socket()).is_ok());
        let node = living.next().expect("a node");
        usize::try_from(node.number(&["CLUSTER", "KEYSLOT", key])).expect("a slot")
    }

    /// The master that owned the key's slot at the start.
    pub(crate) fn first_master_of(&self, key: &str) -> usize {
        let slot = self.slot(key);
        (0..MASTERS).find(|index| slot < SLOTS * (index + 1) / MASTERS).expect("a master")
    }

    /// Moves a slot with all its keys and pauses between the steps.
    pub(crate) fn migrate(&self, slot: usize, from: usize, to: usize, pause: Duration) {
        let (text, from_id, to_id) = (slot.to_string(), self.id(from), self.id(to));
        let set = |node: usize, how: &[&str]| {
            let reply = self.nodes[node].command(&[&["CLUSTER", "SETSLOT", &text], how].concat());
            assert!(reply.starts_with("+OK"), "{how:?}: {reply}");
        };
        set(to, &["IMPORTING", &from_id]);
        set(from, &["MIGRATING", &to_id]);
        std::thread::sleep(pause);
        loop {
            let reply = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &text, "1"]);
            let Some(key) = reply.split("\r\n").nth(2).filter(|_| !reply.starts_with("*0")) else { break };
            let port = self.nodes[to].port.to_string();
            let moved = self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            assert!(moved.starts_with("+OK") || moved.starts_with("+NOKEY"), "{moved}");
            std::thread::sleep(pause);
        }
        for node in [to, from].into_iter().chain((0..MASTERS).filter(|node| *node != from && *node != to)) {
            set(node, &["NODE", &to_id]);
        }
    }
}
