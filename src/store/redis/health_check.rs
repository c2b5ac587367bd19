//! The health check: decisions on keys that belong to nobody.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::client::{ClientConfig, Completion, OperationKind, OperationTarget, by_deadline, call_once};
use super::connect::{connect_timeout, no_runtime};
use super::limiter_state::LimiterState;
use super::random_id::random_id;
use super::script::{LimitInfo, Operation};
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::store::inner::{micros_floor, runtime::sleep};

/// For so long a key is blocked. The check removes the block; if the process dies meanwhile, the key expires.
const BLOCK: Duration = Duration::from_secs(10);
/// So many keys are checked. A proxy that distributes keys over two servers has all of the larger number on one of them once
/// in 128 checks.
const MIN_KEYS: usize = 2;
const MAX_KEYS: usize = 8;
/// So many random keys are tried to find one whose cluster slot a node serves.
const MAX_TRIES: usize = 1_000;

/// Runs a health check for at most twice the time to connect.
pub(super) async fn within_time_to_connect(
    config: &ClientConfig,
    checking: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let within = connect_timeout(config.deadline) * 2;
    let timer = sleep(within).ok_or_else(no_runtime)?;
    by_deadline(checking, timer, || {
        format!(
            "health check failed: Redis ({}) did not respond within {within:?}; check that the server is reachable",
            config.health.server.describe(),
        )
    })
    .await
}

impl<Key: ?Sized> LimiterState<Key> {
    /// Makes decisions on each node: see [`Redis::health_check`](super::Redis::health_check).
    pub(super) async fn health_check(&self) -> Result<(), Error> {
        let ClientConfig { health, deadline, .. } = &*self.client.config;
        let checking = async {
            health.server.discover(*deadline).await.map_err(|failure| failure.error)?;
            try_join_all((0..health.server.node_count()).map(|index| self.check_node(index))).await.map(drop)
        };
        within_time_to_connect(&self.client.config, checking).await
    }

    /// Decides on some keys in one call, and then on each of the others alone: each call of the script must find what the
    /// first one has written.
    async fn check_node(&self, index: usize) -> Result<(), Error> {
        let config = &self.client.config;
        let server = &config.health.server;
        let count = if server.is_cluster() { MIN_KEYS } else { MAX_KEYS };
        let targets: Vec<_> = (0..count).filter_map(|_| self.probe_target(index)).collect();
        // A node without slots receives no calls, and may have left the cluster.
        if targets.is_empty() {
            return Ok(());
        }
        let node = config.health.node(index);
        let connection = server.open(index, config.deadline).await.map_err(|failure| failure.error)?;
        let config =
            Arc::new(ClientConfig { deadline: connect_timeout(config.deadline), ..ClientConfig::clone(config) });
        let run = |operations| call_once(&config, &node, Arc::clone(&connection), operations);
        let block =
            |micros| self.blocked_limit().and_then(|limit| self.operation(Operation::Block, limit, &[], 0, 2 * micros));
        let blocks: Vec<_> = block(micros_floor(BLOCK)).into_iter().collect();
        let decide = |target: &OperationTarget| (target.clone(), self.probe(Operation::Acquisition));
        let mutate =
            |target: &OperationTarget, changes: &Vec<_>| (target.clone(), OperationKind::Mutate(changes.clone()));
        run(targets.iter().flat_map(|target| [decide(target), mutate(target, &blocks)]).collect()).await?;
        if !blocks.is_empty() && self.is_decided_together() {
            for target in &targets[1..] {
                let seen = run(vec![(target.clone(), self.probe(Operation::Peek))]).await?;
                if matches!(&seen[..], [Completion::Decided(decision, _)] if decision.is_allowed()) {
                    return Err(Error::unavailable(format!(
                        "health check failed: Redis ({}) has lost a key that the check wrote; if a proxy distributes \
                         keys over several servers, connect to one server, or to a cluster by `RedisServer::cluster`",
                        server.describe()
                    )));
                }
            }
        }
        let resets = self.probed_limits().filter_map(|(limit, _)| self.operation(Operation::Reset, limit, &[], 0, 0));
        let end: Vec<_> = block(0).into_iter().chain(resets).collect();
        run(targets.iter().map(|target| mutate(target, &end)).collect()).await.map(drop)
    }

    /// The limits that the check decides by: their algorithm is known without a key, and charges at once.
    fn probed_limits(&self) -> impl Iterator<Item = (usize, &LimitInfo)> {
        let limits = self.limits().iter().enumerate();
        limits.filter(|(_, limit)| limit.fixed_algorithm.is_some() && !limit.held_until_end)
    }

    /// The limit whose key the check blocks, because only a write shows whether the server accepts writes.
    fn blocked_limit(&self) -> Option<usize> {
        let limits = self.limits().iter().enumerate();
        let known = limits.filter(|(_, limit)| limit.fixed_algorithm.is_some() && !limit.facts.is_shadow);
        known.min_by_key(|(_, limit)| limit.held_until_end).map(|(index, _)| index)
    }

    /// Whether one decision can be made by all probed limits: the script needs the parameters of all limits.
    fn is_decided_together(&self) -> bool {
        self.limits().iter().all(|limit| limit.fixed_algorithm.is_some()) && self.probed_limits().next().is_some()
    }

    /// Returns a decision of cost 1, or the charges of the single limits.
    fn probe(&self, operation: Operation) -> OperationKind {
        let options = AcquireOptions::cost(1);
        if self.is_decided_together() {
            let template = self.limits.template(&[], operation, options, Vec::new(), Vec::new());
            return OperationKind::Decide(options, Arc::new(template));
        }
        let charges = self.probed_limits().filter_map(|(limit, _)| self.operation(Operation::Charge, limit, &[], 1, 1));
        OperationKind::Mutate(charges.collect())
    }

    /// Returns random keys whose slot the node serves. `None` if none are found.
    fn probe_target(&self, node: usize) -> Option<OperationTarget> {
        let server = &self.client.config.health.server;
        let mut targets = (0..MAX_TRIES).filter_map(|_| self.random_target().ok());
        targets.find(|target| server.node_of_slot(target.slot()) == node)
    }

    fn random_target(&self) -> Result<OperationTarget, Error> {
        let name = format!("health-check-{:x}", random_id());
        let tag = self.hash_tag.is_some().then_some(&*name);
        // The script needs a key in any case.
        let named: Vec<_> = self.probed_limits().map(|(index, _)| index).chain(self.blocked_limit()).collect();
        let applies = |limit| named.contains(&limit) || named.is_empty() && limit == 0;
        self.target_of(tag, Vec::new(), applies, |_, writer| writer.bytes(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::time::Duration;

    use redis::RedisError;
    use tokio::sync::Barrier;
    use tokio::time::sleep;

    use crate::store::inner::BoxFuture;
    use crate::store::redis::connect::{Connection, Connector};
    use crate::store::redis::{Redis, RedisBuilder, RedisServer};
    use crate::{AcquireOptions, Gcra, Limiter as _, Quota};

    /// A cluster whose nodes fail once a client connects to all of them.
    struct Nodes(Arc<Barrier>);

    impl Connector for Nodes {
        fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
            let nodes = Arc::clone(&self.0);
            Box::pin(async move {
                nodes.wait().await;
                Err(std::io::Error::other("connected to all nodes").into())
            })
        }

        fn describe(&self) -> &'static str {
            "nodes"
        }

        fn is_cluster(&self) -> bool {
            true
        }

        fn node_count(&self) -> usize {
            30
        }

        fn node_of_slot(&self, slot: u16) -> usize {
            usize::from(slot) % 30
        }
    }

    #[tokio::test(start_paused = true)]
    async fn health_check_of_a_cluster_visits_all_nodes_at_the_same_time() {
        let server = RedisServer(Arc::new(Nodes(Arc::new(Barrier::new(30)))));
        let limiter = Redis::<str>::builder(server, "api", Gcra::new(Quota::per_second(1))).build().expect("limits");
        let error = limiter.health_check().await.expect_err("the nodes fail");
        assert!(error.to_string().contains("connected to all nodes"), "{error}");
    }

    /// A server that takes three seconds to refuse a connection.
    struct SlowServer;

    impl Connector for SlowServer {
        fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
            Box::pin(async {
                sleep(Duration::from_secs(3)).await;
                Err(std::io::Error::other("refused late").into())
            })
        }

        fn describe(&self) -> &'static str {
            "a slow server"
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connecting_ends_after_two_seconds_unless_the_deadline_is_longer() {
        let limiter = |deadline| {
            let server = RedisServer(Arc::new(SlowServer));
            Redis::builder(server, "api", Gcra::new(Quota::per_second(1))).deadline(deadline).build().expect("limits")
        };
        let error = limiter(RedisBuilder::<str>::DEFAULT_DEADLINE).health_check().await.expect_err("no connection");
        assert!(error.to_string().contains("no connection within 2s"), "{error}");
        let patient = limiter(Duration::from_secs(10));
        let error = patient.health_check().await.expect_err("the server refuses");
        assert!(error.to_string().contains("refused late"), "{error}");
        let error = patient.acquire("alice", AcquireOptions::default()).await.expect_err("the server refuses");
        assert!(error.to_string().contains("refused late"), "{error}");
    }
}
