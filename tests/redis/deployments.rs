//! Every way to deploy Redis that a limiter is to decide alike on.

use std::thread;

use tower_ratelimit::RedisServer;

use crate::cluster_server::Nodes;
use crate::sentinel_server::Watched;
use crate::server::Server;

/// One Redis, three masters, and a master that Sentinels name.
pub(crate) struct Deployments {
    alone: Server,
    cluster: Nodes,
    watched: Watched,
}

impl Deployments {
    pub(crate) fn start() -> Self {
        thread::scope(|scope| {
            let (cluster, watched) = (scope.spawn(Nodes::start), scope.spawn(Watched::start));
            Self {
                alone: Server::start(),
                cluster: cluster.join().expect("a cluster"),
                watched: watched.join().expect("Sentinels"),
            }
        })
    }

    pub(crate) fn alone(&self) -> RedisServer {
        self.alone.open()
    }

    /// Each, and what it is called.
    pub(crate) fn each(&self) -> [(&'static str, RedisServer); 3] {
        [("Redis", self.alone.open()), ("a cluster", self.cluster.open()), ("Sentinel", self.watched.open())]
    }
}
