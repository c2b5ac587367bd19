//! Redis Cluster: the cluster slot of a key, the map from slots to nodes, and connections that follow redirections.

#[cfg(feature = "redis-cluster")]
mod connection;
mod slot;
#[cfg(feature = "redis-cluster")]
mod slot_map;
#[cfg(feature = "redis-cluster")]
mod topology;

pub(crate) use self::slot::cluster_slot;
#[cfg(feature = "redis-cluster")]
pub(crate) use self::topology::Topology;
