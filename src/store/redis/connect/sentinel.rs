use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value, from_redis_value, from_redis_value_ref};

use super::address::at_address;
use super::connector::{Connection, Connector};
use super::credentials::CredentialsProvider;
use super::shared_connection::SharedConnection;
#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use crate::error::Error;
use crate::store::inner::BoxFuture;

/// Connects to the master that Sentinel names. Each new connection asks the Sentinels again.
#[derive(Clone)]
pub(crate) struct SentinelConnector {
    sentinels: Vec<ConnectionInfo>,
    master_name: String,
    /// The settings of a connection to the master, except for host and port.
    connection_template: ConnectionInfo,
    description: String,
    /// The credentials of the master; the Sentinels have the credentials in their addresses.
    credentials: Option<CredentialsProvider>,
}

impl SentinelConnector {
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        master_name: &str,
        connection_template: ConnectionInfo,
    ) -> Result<Self, Error> {
        if sentinels.is_empty() {
            return Err(Error::config(
                "invalid Sentinel settings: there is no address; give the address of at least one Sentinel",
            ));
        }
        if master_name.is_empty() {
            return Err(Error::config(
                "invalid Sentinel settings: the master's name is empty; use the name in Sentinel's configuration, such \
                 as \"mymaster\"",
            ));
        }
        if !matches!(connection_template.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. }) {
            return Err(Error::config(
                "invalid Sentinel settings: the master's address has no host and port; use redis:// or rediss://",
            ));
        }
        let addresses: Vec<_> = sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        let description = format!("master {master_name:?} of the Sentinels {}", addresses.join(", "));
        let master_name = master_name.to_owned();
        Ok(Self { sentinels, master_name, connection_template, description, credentials: None })
    }

    /// Asks all Sentinels at once, and returns the first connection to a server that confirms that it is the master.
    async fn connect_to_master(&self) -> Result<SharedConnection, RedisError> {
        let queries = self.sentinels.iter().map(|sentinel| Box::pin(self.query_sentinel(sentinel)));
        Ok(select_ok(queries).await?.0)
    }

    async fn query_sentinel(&self, sentinel: &ConnectionInfo) -> Result<SharedConnection, RedisError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        let reply = SharedConnection::open(sentinel.clone(), None).await?.send(&command).await?;
        let (host, port) = from_redis_value(reply).map_err(|_| {
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, "Sentinel knows no master of this name"))
        })?;
        let info = at_address(&self.connection_template, host, port);
        let master = SharedConnection::open(info, self.credentials.clone()).await?;
        // During a fail-over a Sentinel may still name the old master, so the server must confirm its role.
        let role: Vec<Value> = from_redis_value(master.send(&redis::cmd("ROLE")).await?)?;
        if role.first().is_some_and(|role| from_redis_value_ref(role).is_ok_and(|role: String| role == "master")) {
            return Ok(master);
        }
        Err((ErrorKind::Io, "the server that Sentinel named is not a master").into())
    }
}

impl Connector for SentinelConnector {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let connector = self.clone();
        Box::pin(async move { Ok(Arc::new(connector.connect_to_master().await?) as Arc<dyn Connection>) })
    }

    fn describe(&self) -> &str {
        &self.description
    }

    fn endpoints(&self) -> Vec<String> {
        let Self { sentinels, master_name, connection_template, .. } = self;
        let database = connection_template.redis_settings().db();
        sentinels.iter().map(|sentinel| format!("{master_name:?} of {}/{database}", sentinel.addr())).collect()
    }

    fn with_credentials(&self, provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Ok(Arc::new(Self { credentials: Some(provider), ..self.clone() }))
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        let uses_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let mut connector = self.clone();
        if !connector.sentinels.iter().any(uses_tls) {
            // Also without TLS: returns the error that no address uses TLS.
            connector.connection_template = tls.apply_to(connector.connection_template)?;
            return Ok(Arc::new(connector));
        }
        for info in connector.sentinels.iter_mut().chain([&mut connector.connection_template]) {
            if uses_tls(info) {
                *info = tls.apply_to(info.clone())?;
            }
        }
        Ok(Arc::new(connector))
    }
}
