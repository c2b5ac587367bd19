use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use super::connector::Cluster;
use crate::limiter::BoxFuture;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::shared_connection::Link;

/// A connection to as many nodes as it has needed.
///
/// A command is sent again only where a node said that it did not run it; never because no answer came.
#[derive(Clone)]
pub(crate) struct Routed {
    cluster: Cluster,
    nodes: Arc<Mutex<HashMap<usize, Arc<OnceCell<Link>>>>>,
}

impl Routed {
    /// So many times at most a command is sent on: a cluster that sends it in circles is not followed for long.
    const MAX_HOPS: usize = 8;
    /// So many times at most a node is asked again that is not ready, and how long after.
    const MAX_WAITS: usize = 3;
    const WAIT: Duration = Duration::from_millis(10);

    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster, nodes: Arc::default() }
    }

    /// The connection to a node, made if need be: by one, whoever else waits for it.
    pub(crate) async fn node(&self, node: usize) -> Result<Link, RedisError> {
        let cell = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(nodes.entry(node).or_default())
        };
        cell.get_or_try_init(|| self.cluster.connect_to(node)).await.cloned()
    }

    async fn route(&self, slot: u16, command: &Cmd) -> Result<Value, RedisError> {
        let (mut hops, mut waits, mut asking) = (0, 0, None);
        loop {
            let node = asking.unwrap_or_else(|| self.cluster.owner(slot));
            let result = match self.node(node).await {
                Ok(connection) => send(connection, asking.take().is_some(), command).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else { return result };
            let ErrorKind::Server(kind) = error.kind() else {
                // It may have been run.
                self.cluster.refresh_soon();
                return Err(error);
            };
            match kind {
                ServerErrorKind::Moved | ServerErrorKind::Ask if hops < Self::MAX_HOPS => {
                    hops += 1;
                    let Some((address, _)) = error.redirect_node() else { return Err(error) };
                    let Some(target) = self.cluster.node_named(address, node) else { return Err(error) };
                    if kind == ServerErrorKind::Ask {
                        asking = Some(target);
                    } else {
                        self.cluster.learn(slot, target);
                        self.cluster.refresh_soon();
                    }
                }
                ServerErrorKind::ClusterDown | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
                    if waits < Self::MAX_WAITS =>
                {
                    waits += 1;
                    self.cluster.refresh_soon();
                    sleep(Self::WAIT).await;
                }
                _ => return Err(error),
            }
        }
    }
}

async fn send(connection: Link, asking: bool, command: &Cmd) -> Result<Value, RedisError> {
    if !asking {
        return connection.send(command).await;
    }
    // To a node that is about to get the slot: only right behind ASKING does it answer.
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING");
    both.add_command(command.clone());
    let mut replies = connection.send_all(&both).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}

impl Connection for Routed {
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let routed = self.clone();
        Box::pin(async move { routed.route(slot, &command).await })
    }

    fn pipe(&self, _commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let error = (ErrorKind::InvalidClientConfig, "commands without a slot can't be sent to a cluster");
        Box::pin(std::future::ready(Err(error.into())))
    }

    fn is_open(&self) -> BoxFuture<bool> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = join_all(nodes.values().filter_map(|node| node.get()).map(Connection::is_open));
        Box::pin(async move { nodes.await.into_iter().all(|is_open| is_open) })
    }
}
