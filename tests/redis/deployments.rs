//! The Redis deployments on which a limiter must decide alike.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use tower_ratelimit::RedisServer;

use crate::cluster_server::Cluster;
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

/// A single Redis, a cluster of three masters, and a master with Sentinels.
pub(crate) struct Deployments {
    alone: Server,
    cluster: Cluster,
    sentinel: SentinelDeployment,
}

impl Deployments {
    /// The deployments that the running tests share.
    ///
    /// Starting them takes seconds, so they run until the last of the tests that use them ends. Tests must use limiters with
    /// different names.
    pub(crate) fn shared() -> Arc<Self> {
        static RUNNING: Mutex<Weak<Deployments>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start());
            *running = Arc::downgrade(&started);
            started
        })
    }

    fn start() -> Self {
        thread::scope(|scope| {
            let (cluster, sentinel) = (scope.spawn(Cluster::start), scope.spawn(SentinelDeployment::start));
            Self {
                alone: Server::start(),
                cluster: cluster.join().expect("a cluster"),
                sentinel: sentinel.join().expect("Sentinels"),
            }
        })
    }

    pub(crate) fn alone(&self) -> RedisServer {
        self.alone.open()
    }

    /// Each deployment with its name.
    pub(crate) fn each(&self) -> [(&'static str, RedisServer); 3] {
        [("Redis", self.alone.open()), ("a cluster", self.cluster.open()), ("Sentinel", self.sentinel.open())]
    }
}
