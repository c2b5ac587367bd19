//! Redis Cluster: the cluster slot of a key, the map of slots to nodes, and connections that follow redirections.

#[cfg(feature = "redis-cluster")]
mod connection;
#[cfg(feature = "redis-cluster")]
mod connector;
pub(crate) mod slot;
#[cfg(feature = "redis-cluster")]
mod slot_map;

#[cfg(feature = "redis-cluster")]
pub(crate) use self::connector::Cluster;
