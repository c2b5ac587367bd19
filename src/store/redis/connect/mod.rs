//! Connections.

pub(crate) mod connection;
pub(crate) mod failure;
#[cfg(feature = "redis-sentinel")]
pub(crate) mod sentinel;
pub(crate) mod shared_connection;
#[cfg(feature = "redis-tls")]
pub(crate) mod tls;
