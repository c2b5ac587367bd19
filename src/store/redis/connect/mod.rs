//! Connections to Redis: how they are opened, shared and checked, and what their errors mean.

mod address;
mod connector;
mod credentials;
mod failure;
#[cfg(feature = "bb8")]
mod opening;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod shared_connection;
mod single;
#[cfg(feature = "redis-tls")]
mod tls;

#[cfg(feature = "redis-cluster")]
pub(crate) use self::address::at_address;
pub(crate) use self::address::parse_address;
#[cfg(test)]
pub(crate) use self::connector::MIN_CONNECT_TIMEOUT;
pub(crate) use self::connector::{Connection, Connector, connect_timeout};
pub use self::credentials::RedisCredentials;
pub(crate) use self::credentials::{CredentialsProvider, ProviderError};
pub(crate) use self::failure::{Failure, no_runtime, runtime_ends};
#[cfg(feature = "bb8")]
pub(crate) use self::opening::Opening;
#[cfg(feature = "redis-sentinel")]
pub(crate) use self::sentinel::SentinelConnector;
#[cfg(any(feature = "bb8", feature = "redis-cluster", test))]
pub(crate) use self::shared_connection::SharedConnection;
#[cfg(test)]
pub(crate) use self::shared_connection::connection_config;
pub(crate) use self::single::ClientConnector;
#[cfg(feature = "redis-tls")]
pub use self::tls::RedisTls;
