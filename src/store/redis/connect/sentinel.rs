use std::sync::Arc;

use futures_util::future::select_ok;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};

use super::connection::Connection;
use super::connector::{Connector, with_connect_timeout};
use super::credentials::CredentialsProvider;
use super::failure::Failure;
use super::shared_connection::SharedConnection;
#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use crate::error::Error;
use crate::store::inner::BoxFuture;

/// Connects to the master that Sentinel names. Each new connection asks the Sentinels again.
#[derive(Clone)]
pub(crate) struct SentinelConnector(Arc<SentinelConfig>);

#[derive(Clone)]
struct SentinelConfig {
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
        Ok(Self(Arc::new(SentinelConfig {
            sentinels,
            master_name,
            connection_template,
            description,
            credentials: None,
        })))
    }

    fn with_provider(&self, credentials: Option<CredentialsProvider>) -> Self {
        Self(Arc::new(SentinelConfig { credentials, ..SentinelConfig::clone(&self.0) }))
    }

    /// Asks all Sentinels at once, and returns the first connection to a server that confirms that it is the master.
    async fn connect_to_master(&self) -> Result<SharedConnection, RedisError> {
        let queries = self.0.sentinels.iter().map(|sentinel| Box::pin(self.query_sentinel(sentinel)));
        Ok(select_ok(queries).await?.0)
    }

    async fn query_sentinel(&self, sentinel: &ConnectionInfo) -> Result<SharedConnection, RedisError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.0.master_name);
        let reply = SharedConnection::open(sentinel.clone(), None).await?.send(&command).await?;
        let (host, port) = parse_master_address(&reply)
            .ok_or((ErrorKind::MasterNameNotFoundBySentinel, "Sentinel knows no master of this name"))?;
        let mut address = self.0.connection_template.addr().clone();
        match &mut address {
            ConnectionAddr::Tcp(own, at) | ConnectionAddr::TcpTls { host: own, port: at, .. } => {
                (*own, *at) = (host, port);
            }
            _ => {}
        }
        let info = self.0.connection_template.clone().set_addr(address);
        let master = SharedConnection::open(info, self.0.credentials.clone()).await?;
        // During a fail-over a Sentinel may still name the old master, so the server must confirm its role.
        match master.send(&redis::cmd("ROLE")).await? {
            Value::Array(role) if role.first().and_then(text).as_deref() == Some("master") => Ok(master),
            _ => Err((ErrorKind::Io, "the server that Sentinel named is not a master").into()),
        }
    }
}

fn parse_master_address(reply: &Value) -> Option<(String, u16)> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = &parts[..] else { return None };
    Some((text(host)?, text(port)?.parse().ok()?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

impl Connector for SentinelConnector {
    fn connect(&self, _node: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let connector = self.clone();
        Box::pin(async move {
            let master = with_connect_timeout(connector.describe(), connector.connect_to_master()).await?;
            Ok(Box::new(master) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        &self.0.description
    }

    fn endpoints(&self) -> Vec<String> {
        let SentinelConfig { sentinels, master_name, connection_template, .. } = &*self.0;
        let database = connection_template.redis_settings().db();
        sentinels.iter().map(|sentinel| format!("{master_name:?} of {}/{database}", sentinel.addr())).collect()
    }

    fn with_credentials(&self, provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Ok(Arc::new(self.with_provider(Some(provider))))
    }

    /// Applies to each address, of the master and of the Sentinels, that is `rediss://`.
    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        let uses_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let SentinelConfig { sentinels, master_name, connection_template, .. } = &*self.0;
        let apply = |info: &ConnectionInfo| if uses_tls(info) { tls.apply_to(info.clone()) } else { Ok(info.clone()) };
        if !sentinels.iter().chain([connection_template]).any(uses_tls) {
            // Returns the error that no address uses TLS.
            tls.apply_to(connection_template.clone())?;
        }
        let sentinels = sentinels.iter().map(apply).collect::<Result<_, _>>()?;
        let connector = Self::new(sentinels, master_name, apply(connection_template)?)?;
        Ok(Arc::new(connector.with_provider(self.0.credentials.clone())))
    }
}
