use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ConnectionInfo, RedisError};

use super::address::address_error;
use super::connector::{Connection, Connector};
use super::credentials::CredentialsProvider;
use super::shared_connection::SharedConnection;
#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use crate::error::Error;
use crate::store::inner::BoxFuture;

/// Connects to one address. There is no pool: a worker task keeps one connection, and its concurrent calls share it.
#[derive(Clone)]
pub(crate) struct ClientConnector {
    client: Client,
    address: String,
    credentials: Option<CredentialsProvider>,
}

impl ClientConnector {
    pub(crate) fn new(info: ConnectionInfo) -> Result<Self, Error> {
        let address = info.addr().to_string();
        Ok(Self { client: Client::open(info).map_err(address_error)?, address, credentials: None })
    }
}

impl Connector for ClientConnector {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let opening = SharedConnection::open(self.client.get_connection_info().clone(), self.credentials.clone());
        Box::pin(async move { Ok(Arc::new(opening.await?) as Arc<dyn Connection>) })
    }

    fn describe(&self) -> &str {
        &self.address
    }

    fn endpoints(&self) -> Vec<String> {
        vec![format!("{}/{}", self.address, self.client.get_connection_info().redis_settings().db())]
    }

    fn with_credentials(&self, provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Ok(Arc::new(Self { credentials: Some(provider), ..self.clone() }))
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        let connector = Self::new(tls.apply_to(self.client.get_connection_info().clone())?)?;
        Ok(Arc::new(Self { credentials: self.credentials.clone(), ..connector }))
    }
}
