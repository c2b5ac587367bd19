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

use super::connection::ClusterConnection;
use super::slot_map::{NodeAddress, SlotMap, parse_node_address};
use crate::error::Error;
use crate::store::inner::BoxFuture;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connect::RedisTls;
use crate::store::redis::connect::{Connection, Connector, CredentialsProvider, SharedConnection, at_address};

/// The nodes of a cluster and the slots that each serves, as far as this process knows. Clones share it.
#[derive(Clone)]
pub(crate) struct Topology(Arc<ClusterState>);

struct ClusterState {
    /// The addresses that the user gave.
    seeds: Vec<NodeAddress>,
    /// The settings of every connection, except for host and port: the settings of the first seed.
    connection_template: ConnectionInfo,
    credentials: Option<CredentialsProvider>,
    description: String,
    slot_map: ArcSwap<SlotMap>,
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

    fn from_seeds(
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

    fn is_discovered(&self) -> bool {
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
    async fn refresh(&self, within: Duration) -> Result<(), RedisError> {
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

/// Connects to the nodes of a cluster. A node's index is its index in the slot map.
impl Connector for Topology {
    fn connect(&self, node: usize, within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let topology = self.clone();
        Box::pin(async move {
            let mut refresh = None;
            if topology.is_discovered() {
                // A new connection usually replaces a failed one, so the slots may have moved.
                refresh = topology.refresh_in_background(within);
            } else {
                topology.refresh(within).await?;
            }
            let connection = ClusterConnection::new(topology, within);
            if let Err(error) = connection.node(node).await {
                // The error ends the call. With `block_on` for each call nothing drives the refresh after that.
                if let Some(refresh) = refresh {
                    let _ = refresh.await;
                }
                return Err(error);
            }
            Ok(Arc::new(connection) as Arc<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        &self.0.description
    }

    fn endpoints(&self) -> Vec<String> {
        self.0.seeds.iter().map(|(host, port)| format!("node {host}:{port}")).collect()
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn with_credentials(&self, provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        let ClusterState { seeds, connection_template, .. } = &*self.0;
        Ok(Arc::new(Self::from_seeds(seeds.clone(), connection_template.clone(), Some(provider))))
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        let ClusterState { seeds, connection_template, credentials, .. } = &*self.0;
        let template = tls.apply_to(connection_template.clone())?;
        Ok(Arc::new(Self::from_seeds(seeds.clone(), template, credentials.clone())))
    }

    fn discover_nodes(&self, within: Duration) -> BoxFuture<Result<(), RedisError>> {
        let topology = self.clone();
        Box::pin(async move { topology.refresh(within).await })
    }

    fn node_count(&self) -> usize {
        self.0.slot_map.load().nodes().len().max(1)
    }

    fn node_of_slot(&self, slot: u16) -> usize {
        self.slot_owner(slot)
    }
}

fn no_node() -> RedisError {
    (ErrorKind::ClusterConnectionNotFound, "no node of the cluster is known").into()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::thread;
    use std::time::Duration;

    use redis::IntoConnectionInfo as _;

    use super::{Connector as _, Topology};

    /// A node of a cluster, which takes a while for each reply, and says that one master serves all slots.
    struct SlowNode {
        address: String,
        port: u16,
        master: Arc<AtomicU16>,
    }

    impl SlowNode {
        /// Longer than it takes to find that a port is closed.
        const DELAY: Duration = Duration::from_millis(20);

        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let master = Arc::new(AtomicU16::new(port));
            let shared = Arc::clone(&master);
            thread::spawn(move || {
                for client in listener.incoming() {
                    let (client, master) = (client.expect("a client"), Arc::clone(&shared));
                    thread::spawn(move || Self::serve(client, &master));
                }
            });
            Self { address: format!("redis://127.0.0.1:{port}"), port, master }
        }

        fn serve(mut client: TcpStream, master: &AtomicU16) -> Option<()> {
            let mut lines = BufReader::new(client.try_clone().ok()?).lines();
            while let Some(Ok(line)) = lines.next() {
                let arguments: usize = line.strip_prefix('*')?.parse().ok()?;
                let words = (0..arguments).map(|_| lines.nth(1)?.ok()).collect::<Option<Vec<_>>>()?;
                thread::sleep(Self::DELAY);
                let reply = if words[0] == "CLUSTER" {
                    let port = master.load(Ordering::SeqCst);
                    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
                } else {
                    "+OK\r\n".to_owned()
                };
                client.write_all(reply.as_bytes()).ok()?;
            }
            None
        }
    }

    const WITHIN: Duration = Duration::from_secs(240);

    /// A failed attempt to connect to a dead master ends after the refresh, so that it needs no further polls.
    #[test]
    fn failed_connect_has_refreshed_the_slots() {
        let node = SlowNode::start();
        // A port that nobody listens on.
        let dead = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
        node.master.store(dead.port(), Ordering::SeqCst);
        let seed = node.address.as_str().into_connection_info().expect("an address");
        let connector = Topology::new(vec![seed]).expect("an address");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        assert!(runtime.block_on(connector.discover_nodes(WITHIN)).is_ok(), "a node");
        let first = connector.node_of_slot(0);
        node.master.store(node.port, Ordering::SeqCst);
        assert!(runtime.block_on(connector.connect(first, WITHIN)).is_err(), "nobody listens");
        let second = connector.node_of_slot(0);
        assert_ne!(second, first, "the slots have moved");
        assert!(runtime.block_on(connector.connect(second, WITHIN)).is_ok());
    }
}
