//! The Redis deployments on which a limiter must decide alike.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use tower_ratelimit::RedisServer;

use crate::cluster_server::Cluster;
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

type Deployment = (&'static str, RedisServer);

/// A single Redis, a cluster of three masters, a cluster behind one endpoint, and a master with Sentinels.
///
/// With the environment variable `ONLY_SINGLE_REDIS` it is the single Redis only. Mutation testing sets it: the script
/// is equal in all deployments, and the others take seconds to start.
pub(crate) struct Deployments {
    alone: Server,
    others: Option<(Cluster, Cluster, SentinelDeployment)>,
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
        if std::env::var_os("ONLY_SINGLE_REDIS").is_some() {
            return Self { alone: Server::start(), others: None };
        }
        thread::scope(|scope| {
            let (cluster, sentinel) = (scope.spawn(Cluster::start), scope.spawn(SentinelDeployment::start));
            let alone = Server::start();
            let one_node = Cluster::masters(1, |_| Server::node_with(&[]));
            let (cluster, sentinel) = (cluster.join().expect("a cluster"), sentinel.join().expect("Sentinels"));
            Self { alone, others: Some((cluster, one_node, sentinel)) }
        })
    }

    /// The single Redis, and the other deployments, each with its name.
    pub(crate) fn each(&self) -> (Deployment, Vec<Deployment>) {
        let others = self.others.as_ref().map_or(Vec::new(), |(cluster, one_node, sentinel)| {
            let endpoint = RedisServer::cluster([one_node.nodes[0].address()]).expect("an address");
            vec![("a cluster", cluster.open()), ("one endpoint", endpoint), ("Sentinel", sentinel.open())]
        });
        (("Redis", self.alone.open()), others)
    }
}
