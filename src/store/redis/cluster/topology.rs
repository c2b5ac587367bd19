use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::future::select_ok;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::slot_map::{NodeAddress, SlotMap, parse_node_address};
use crate::error::Error;
use crate::store::redis::connect::{CredentialsProvider, SharedConnection, at_address};

/// The nodes of a cluster and the slots that each serves, as far as this process knows. Clones share it.
#[derive(Clone)]
pub(crate) struct Topology(pub(super) Arc<ClusterState>);

pub(super) struct ClusterState {
    /// The addresses that the user gave.
    pub(super) seeds: Vec<NodeAddress>,
    /// The settings of every connection, except for host and port: the settings of the first seed.
    pub(super) connection_template: ConnectionInfo,
    pub(super) credentials: Option<CredentialsProvider>,
    pub(super) description: String,
    pub(super) slot_map: ArcSwap<SlotMap>,
    last_refresh: Mutex<Option<Instant>>,
    /// Rotates the nodes, so that each refresh asks other nodes first.
    next_node: AtomicUsize,
}

impl Topology {
    /// The minimum time between two background refreshes.
    const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
    /// The number of nodes that a refresh asks at once.
    const PARALLEL_QUERIES: usize = 3;
    /// The part of the time to connect that each of these nodes has to reply.
    const QUERY_SHARE: u32 = 4;

    pub(crate) fn new(infos: Vec<ConnectionInfo>) -> Result<Self, Error> {
        let mut seeds = Vec::with_capacity(infos.len());
        for info in &infos {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr() else {
                return Err(Error::config(
                    "invalid cluster address: it has no host and port; use redis:// or rediss://",
                ));
            };
            seeds.push((host.clone(), *port));
            if info.redis_settings().db() != 0 {
                return Err(Error::config(
                    "invalid cluster address: a Redis cluster has only database 0; remove the database from the \
                     address",
                ));
            }
        }
        let Some(template) = infos.into_iter().next() else {
            return Err(Error::config(
                "invalid cluster settings: there is no address; give the address of at least one node",
            ));
        };
        Ok(Self::from_seeds(seeds, template, None))
    }

    pub(super) fn from_seeds(
        seeds: Vec<NodeAddress>,
        connection_template: ConnectionInfo,
        credentials: Option<CredentialsProvider>,
    ) -> Self {
        let addresses: Vec<_> = seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        Self(Arc::new(ClusterState {
            seeds,
            connection_template,
            credentials,
            description: format!("cluster {}", addresses.join(", ")),
            slot_map: ArcSwap::default(),
            last_refresh: Mutex::default(),
            next_node: AtomicUsize::new(0),
        }))
    }

    pub(super) fn is_discovered(&self) -> bool {
        !self.0.slot_map.load().is_empty()
    }

    pub(super) fn slot_owner(&self, slot: u16) -> usize {
        self.0.slot_map.load().owner(slot)
    }

    /// Records that a slot has moved to another node.
    pub(super) fn set_slot_owner(&self, slot: u16, node: usize) {
        // Each call of a batch may find the same move: only the first one copies the map.
        if self.slot_owner(slot) != node {
            self.update(|map| map.set_owner(slot, node));
        }
    }

    fn update(&self, change: impl Fn(&mut SlotMap)) {
        self.0.slot_map.rcu(|map| {
            let mut map = SlotMap::clone(map);
            change(&mut map);
            map
        });
    }

    /// Returns the index of the node that a redirection of node `source` names.
    pub(super) fn redirect_target(&self, address: &str, source: usize) -> Option<usize> {
        let source_host = self.0.slot_map.load().nodes().get(source).map(|(host, _)| host.clone()).unwrap_or_default();
        let address = parse_node_address(address, &source_host)?;
        let find = || self.0.slot_map.load().nodes().iter().position(|known| *known == address);
        if find().is_none() {
            self.update(|map| {
                map.index_of(&address);
            });
        }
        find()
    }

    pub(super) async fn connect_to(&self, node: usize) -> Result<SharedConnection, RedisError> {
        let address = self.0.slot_map.load().nodes().get(node).cloned();
        self.connect_at(&address.ok_or_else(no_node)?).await
    }

    async fn connect_at(&self, (host, port): &NodeAddress) -> Result<SharedConnection, RedisError> {
        let info = at_address(&self.0.connection_template, host.clone(), *port);
        SharedConnection::open(info, self.0.credentials.clone()).await
    }

    /// Starts a refresh of the slot map in the background, at most once per
    /// [`REFRESH_INTERVAL`](Self::REFRESH_INTERVAL). Returns its task.
    pub(super) fn refresh_in_background(&self, within: Duration) -> Option<JoinHandle<()>> {
        let mut last_refresh = self.0.last_refresh.lock().unwrap_or_else(PoisonError::into_inner);
        if last_refresh.is_some_and(|at| at.elapsed() < Self::REFRESH_INTERVAL) {
            return None;
        }
        // Before the refresh begins, so that calls that fail meanwhile start no other one.
        *last_refresh = Some(Instant::now());
        drop(last_refresh);
        let topology = self.clone();
        Some(tokio::spawn(async move {
            // After an error the next failed command starts another refresh.
            let _ = topology.refresh(within).await;
        }))
    }

    /// Updates the slot map from the first node that replies.
    ///
    /// Asks the slot owners, then the seeds, [`PARALLEL_QUERIES`](Self::PARALLEL_QUERIES) nodes at a time. Each refresh
    /// begins with another node, so nodes that do not respond delay only some refreshes.
    pub(super) async fn refresh(&self, within: Duration) -> Result<(), RedisError> {
        let map = self.0.slot_map.load_full();
        let mut candidates: Vec<NodeAddress> = map.slot_owners().into_iter().cloned().collect();
        let seeds = self.0.seeds.iter().filter(|seed| !candidates.contains(seed)).cloned().collect::<Vec<_>>();
        candidates.extend(seeds);
        let first = self.0.next_node.fetch_add(1, Ordering::Relaxed) % candidates.len().max(1);
        candidates.rotate_left(first);
        let mut last_error = None;
        for group in candidates.chunks(Self::PARALLEL_QUERIES) {
            match select_ok(group.iter().map(|node| Box::pin(self.fetch_slots(node, within / Self::QUERY_SHARE)))).await
            {
                Ok(((reply, host), _)) => {
                    self.0.slot_map.rcu(|map| map.merge_reply(&reply, &host).unwrap_or_else(|| SlotMap::clone(map)));
                    return Ok(());
                }
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(no_node))
    }

    /// Returns a node's reply to CLUSTER SLOTS, and the node's host.
    async fn fetch_slots(&self, node: &NodeAddress, within: Duration) -> Result<(Value, String), RedisError> {
        let query = timeout(within, async {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            self.connect_at(node).await?.send(&command).await
        });
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "a cluster node did not respond in time");
        let reply = query.await.map_err(late)??;
        if SlotMap::default().merge_reply(&reply, &node.0).is_none() {
            return Err((ErrorKind::ClusterConnectionNotFound, "a cluster node knows no slots").into());
        }
        Ok((reply, node.0.clone()))
    }
}

fn no_node() -> RedisError {
    (ErrorKind::ClusterConnectionNotFound, "no node of the cluster is known").into()
}
