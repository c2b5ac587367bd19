use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use super::topology::Topology;
use crate::store::inner::BoxFuture;
use crate::store::redis::connect::{Connection, SharedConnection};

/// A connection to a cluster: one connection per node, opened on first use, that follows redirections.
///
/// A command is sent again only if a node replied that it did not run it (MOVED, ASK, CLUSTERDOWN, LOADING,
/// MASTERDOWN). A command is never sent again because a reply is missing: the node may have run it, and a second run
/// would charge twice.
#[derive(Clone)]
pub(super) struct ClusterConnection {
    topology: Topology,
    /// The maximum time to connect.
    within: Duration,
    nodes: Arc<Mutex<HashMap<usize, Arc<OnceCell<SharedConnection>>>>>,
}

impl ClusterConnection {
    /// The maximum number of redirections of one command. Nodes that disagree may redirect in circles.
    const MAX_REDIRECTS: usize = 8;
    /// The maximum number of retries on a node that is not ready, and the time between two.
    const MAX_RETRIES: usize = 3;
    const RETRY_DELAY: Duration = Duration::from_millis(10);

    pub(super) fn new(topology: Topology, within: Duration) -> Self {
        Self { topology, within, nodes: Arc::default() }
    }

    /// Returns the connection to a node. The first caller opens it; concurrent callers wait for that.
    pub(super) async fn node(&self, node: usize) -> Result<SharedConnection, RedisError> {
        let cell = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(nodes.entry(node).or_default())
        };
        cell.get_or_try_init(|| self.topology.connect_to(node)).await.cloned()
    }

    async fn route(&self, slot: u16, command: &Cmd) -> Result<Value, RedisError> {
        // ASK redirects this command only, so `ask_node` is used once. MOVED changes the slot map.
        let (mut redirects, mut retries, mut ask_node) = (0, 0, None);
        loop {
            let node = ask_node.unwrap_or_else(|| self.topology.slot_owner(slot));
            let result = match self.node(node).await {
                Ok(connection) => send(connection, ask_node.take().is_some(), command).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else { return result };
            let ErrorKind::Server(kind) = error.kind() else {
                // The node may have run the command.
                self.topology.refresh_in_background(self.within);
                return Err(error);
            };
            match kind {
                ServerErrorKind::Moved | ServerErrorKind::Ask if redirects < Self::MAX_REDIRECTS => {
                    redirects += 1;
                    let Some((address, _)) = error.redirect_node() else { return Err(error) };
                    let Some(target) = self.topology.redirect_target(address, node) else { return Err(error) };
                    if kind == ServerErrorKind::Ask {
                        ask_node = Some(target);
                    } else {
                        self.topology.set_slot_owner(slot, target);
                        self.topology.refresh_in_background(self.within);
                    }
                }
                ServerErrorKind::ClusterDown | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
                    if retries < Self::MAX_RETRIES =>
                {
                    retries += 1;
                    self.topology.refresh_in_background(self.within);
                    sleep(Self::RETRY_DELAY).await;
                }
                _ => return Err(error),
            }
        }
    }
}

async fn send(connection: SharedConnection, asking: bool, command: &Cmd) -> Result<Value, RedisError> {
    if !asking {
        return connection.send(command).await;
    }
    // A node that imports a slot runs a command on it only directly after ASKING on the same connection.
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING");
    pipeline.add_command(command.clone());
    let mut replies = connection.call_all(pipeline).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

impl Connection for ClusterConnection {
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let connection = self.clone();
        Box::pin(async move { connection.route(slot, &command).await })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = join_all(nodes.values().filter_map(|node| node.get()).map(Connection::is_open));
        Box::pin(async move { nodes.await.into_iter().all(|is_open| is_open) })
    }
}
