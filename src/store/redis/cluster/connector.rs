use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use super::connection::ClusterConnection;
use super::topology::{ClusterState, Topology};
use crate::error::Error;
use crate::store::inner::BoxFuture;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connect::RedisTls;
use crate::store::redis::connect::{Connection, Connector, CredentialsProvider};

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
