use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::future::select_ok;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::time::timeout;

use super::connection::Routed;
use super::slot_map::{Address, Map, address};
use crate::error::Error;
use crate::limiter::BoxFuture;
#[cfg(feature = "redis-tls")]
use crate::store::redis::RedisTls;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::connect::shared_connection::Link;
use crate::store::redis::server::{Source, within};

/// The nodes of a cluster. Lanes are nodes, by their index in the map.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Shared>);

struct Shared {
    /// Where to ask first. The first one's user, password and TLS settings are for all nodes.
    seeds: Vec<Address>,
    template: ConnectionInfo,
    place: String,
    map: ArcSwap<Map>,
    /// When the map was last asked for.
    asked_at: Mutex<Option<Instant>>,
    /// Which node to ask for it next.
    turn: AtomicUsize,
}

impl Cluster {
    /// How long after one the map may be asked for again, unless somebody waits for it.
    const PAUSE: Duration = Duration::from_millis(100);
    /// How many nodes are asked for it at once, and how long they may take.
    const AT_ONCE: usize = 3;
    const ANSWER_WITHIN: Duration = Duration::from_millis(500);

    pub(crate) fn new(infos: Vec<ConnectionInfo>) -> Result<Self, Error> {
        let mut seeds = Vec::with_capacity(infos.len());
        for info in &infos {
            match info.addr() {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    seeds.push((host.clone(), *port));
                }
                _ => return Err(Error::config("the nodes of a Redis cluster are reached by host and port")),
            }
            if info.redis_settings().db() != 0 {
                return Err(Error::config("a Redis cluster has only the database 0: leave it out of the address"));
            }
        }
        let Some(template) = infos.into_iter().next() else {
            return Err(Error::config("a Redis cluster needs the address of at least one node"));
        };
        Ok(Self::of(seeds, template))
    }

    fn of(seeds: Vec<Address>, template: ConnectionInfo) -> Self {
        let places: Vec<_> = seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        Self(Arc::new(Shared {
            seeds,
            template,
            place: format!("cluster {}", places.join(", ")),
            map: ArcSwap::default(),
            asked_at: Mutex::default(),
            turn: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn owner(&self, slot: u16) -> usize {
        self.0.map.load().owner(slot)
    }

    /// The index of a node that another one has named.
    pub(crate) fn node_named(&self, named: &str, by: usize) -> Option<usize> {
        let asked = self.0.map.load().nodes().get(by).map(|(host, _)| host.clone()).unwrap_or_default();
        let address = address(named, &asked)?;
        if let Some(known) = self.0.map.load().nodes().iter().position(|known| *known == address) {
            return Some(known);
        }
        self.0.map.rcu(|map| {
            let mut map = Map::clone(map);
            map.index(&address);
            map
        });
        self.0.map.load().nodes().iter().position(|known| *known == address)
    }

    /// A slot is with another node now.
    pub(crate) fn learn(&self, slot: u16, node: usize) {
        if self.owner(slot) != node {
            self.0.map.rcu(|map| {
                let mut map = Map::clone(map);
                map.set_owner(slot, node);
                map
            });
        }
    }

    pub(crate) async fn connect_to(&self, node: usize) -> Result<Link, RedisError> {
        let address = self.0.map.load().nodes().get(node).cloned();
        match address {
            Some(address) => self.connect_at(&address).await,
            None => Err((ErrorKind::ClusterConnectionNotFound, "no node of the cluster is known").into()),
        }
    }

    async fn connect_at(&self, (host, port): &Address) -> Result<Link, RedisError> {
        let mut address = self.0.template.addr().clone();
        match &mut address {
            ConnectionAddr::Tcp(own, at) | ConnectionAddr::TcpTls { host: own, port: at, .. } => {
                own.clone_from(host);
                *at = *port;
            }
            _ => {}
        }
        Link::connect(&Client::open(self.0.template.clone().set_addr(address))?).await
    }

    /// Asks for the map, without waiting for it, unless that was done just now.
    pub(crate) fn refresh_soon(&self) {
        let mut asked_at = self.0.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if asked_at.is_some_and(|at| at.elapsed() < Self::PAUSE) {
            return;
        }
        *asked_at = Some(Instant::now());
        drop(asked_at);
        let cluster = self.clone();
        tokio::spawn(async move {
            // If nobody answers now, whoever fails next asks again.
            let _ = cluster.refresh().await;
        });
    }

    /// Asks for the map: some nodes at a time, each time others first, until one answers.
    async fn refresh(&self) -> Result<(), RedisError> {
        let map = self.0.map.load_full();
        let mut candidates: Vec<Address> = map.holders().into_iter().cloned().collect();
        let seeds = self.0.seeds.iter().filter(|seed| !candidates.contains(seed)).cloned().collect::<Vec<_>>();
        candidates.extend(seeds);
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed) % candidates.len().max(1);
        candidates.rotate_left(turn);
        let mut last = None;
        for some in candidates.chunks(Self::AT_ONCE) {
            match select_ok(some.iter().map(|node| Box::pin(self.ask(node)))).await {
                Ok(((reply, host), _)) => {
                    self.0.map.rcu(|map| map.updated(&reply, &host).unwrap_or_else(|| Map::clone(map)));
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (ErrorKind::ClusterConnectionNotFound, "no node of the cluster is known").into()))
    }

    /// What a node says of all slots.
    async fn ask(&self, node: &Address) -> Result<(Value, String), RedisError> {
        let asked = timeout(Self::ANSWER_WITHIN, async {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            self.connect_at(node).await?.send(&command).await
        });
        let reply = match asked.await {
            Ok(reply) => reply?,
            Err(_) => return Err((ErrorKind::Io, "a node of the cluster does not answer").into()),
        };
        if Map::default().updated(&reply, &node.0).is_none() {
            return Err((ErrorKind::ClusterConnectionNotFound, "a node of the cluster knows of no slots").into());
        }
        Ok((reply, node.0.clone()))
    }
}

impl Source for Cluster {
    fn connect(&self, lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let cluster = self.clone();
        Box::pin(async move {
            if cluster.0.map.load().is_empty() {
                within(cluster.refresh()).await?;
            } else {
                // A connection is made where another one has failed: perhaps as its node is gone.
                cluster.refresh_soon();
            }
            let routed = Routed::new(cluster);
            within(routed.node(lane)).await?;
            Ok(Box::new(routed) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        &self.0.place
    }

    fn places(&self) -> Vec<String> {
        self.0.seeds.iter().map(|(host, port)| format!("node {host}:{port}")).collect()
    }

    fn is_cluster(&self) -> bool {
        true
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Source>, Error> {
        Ok(Arc::new(Self::of(self.0.seeds.clone(), tls.applied(self.0.template.clone())?)))
    }

    fn prepare(&self) -> BoxFuture<Result<(), Failure>> {
        let cluster = self.clone();
        Box::pin(async move { within(cluster.refresh()).await })
    }

    fn lanes(&self) -> usize {
        self.0.map.load().nodes().len().max(1)
    }

    fn lane(&self, slot: u16) -> usize {
        self.owner(slot)
    }
}
