use std::sync::Arc;

use redis::ConnectionInfo;

use super::connection::ClusterConnection;
use super::topology::Topology;
use crate::error::Error;
use crate::limiter::BoxFuture;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connect::RedisTls;
use crate::store::redis::connect::{Connection, Connector, CredentialsProvider, Failure, with_connect_timeout};

/// Connects to the nodes of a cluster. A node's index is its index in the slot map.
pub(crate) struct ClusterConnector(Topology);

impl ClusterConnector {
    pub(crate) fn new(infos: Vec<ConnectionInfo>) -> Result<Self, Error> {
        Ok(Self(Topology::new(infos)?))
    }
}

impl Connector for ClusterConnector {
    fn connect(&self, node: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let topology = self.0.clone();
        Box::pin(async move {
            if topology.is_discovered() {
                // A new connection usually replaces a failed one, so the slots may have moved.
                topology.refresh_in_background();
            } else {
                with_connect_timeout(topology.refresh()).await?;
            }
            let connection = ClusterConnection::new(topology);
            with_connect_timeout(connection.node(node)).await?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        self.0.describe()
    }

    fn endpoints(&self) -> Vec<String> {
        self.0.seeds().iter().map(|(host, port)| format!("node {host}:{port}")).collect()
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn with_credentials(&self, provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Ok(Arc::new(Self(self.0.with_credentials(provider))))
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        Ok(Arc::new(Self(self.0.with_template(|template| tls.apply_to(template))?)))
    }

    fn discover_nodes(&self) -> BoxFuture<Result<(), Failure>> {
        let topology = self.0.clone();
        Box::pin(async move { with_connect_timeout(topology.refresh()).await })
    }

    fn node_count(&self) -> usize {
        self.0.node_count()
    }

    fn node_of_slot(&self, slot: u16) -> usize {
        self.0.slot_owner(slot)
    }
}
