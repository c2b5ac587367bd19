//! Sentinel: who is the master is asked anew for each connection.

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};

#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use crate::error::Error;
use crate::limiter::BoxFuture;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::connect::shared_connection::Link;
use crate::store::redis::server::{Source, within};

/// What Sentinels say is the master of a name.
#[derive(Clone)]
pub(crate) struct Sentinels(Arc<Shared>);

struct Shared {
    sentinels: Vec<ConnectionInfo>,
    name: String,
    settings: ConnectionInfo,
    place: String,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<ConnectionInfo>, name: &str, settings: ConnectionInfo) -> Result<Self, Error> {
        if sentinels.is_empty() {
            return Err(Error::config("a master is found by at least one Sentinel: there is no address"));
        }
        if name.is_empty() {
            return Err(Error::config("a master needs the name by which Sentinel knows it, such as \"mymaster\""));
        }
        if !matches!(settings.addr(), ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. }) {
            return Err(Error::config("a master that Sentinel names is reached by host and port"));
        }
        let places: Vec<_> = sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        let place = format!("master {name:?} of the Sentinels {}", places.join(", "));
        Ok(Self(Arc::new(Shared { sentinels, name: name.to_owned(), settings, place })))
    }

    /// A connection to the master that any Sentinel names and that says so itself: the first one to be found.
    async fn master(&self) -> Result<Link, RedisError> {
        let asked = self.0.sentinels.iter().map(|sentinel| Box::pin(self.master_by(sentinel)));
        Ok(select_ok(asked).await?.0)
    }

    async fn master_by(&self, sentinel: &ConnectionInfo) -> Result<Link, RedisError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.0.name);
        let reply = connect(sentinel.clone()).await?.send(&command).await?;
        let (host, port) =
            named(&reply).ok_or((ErrorKind::MasterNameNotFoundBySentinel, "Sentinel knows no such master"))?;
        let mut address = self.0.settings.addr().clone();
        match &mut address {
            ConnectionAddr::Tcp(own, at) | ConnectionAddr::TcpTls { host: own, port: at, .. } => {
                (*own, *at) = (host, port);
            }
            _ => {}
        }
        let master = connect(self.0.settings.clone().set_addr(address)).await?;
        // What a Sentinel says of a fail-over that goes on may be old.
        match master.send(&redis::cmd("ROLE")).await? {
            Value::Array(role) if role.first().and_then(text).as_deref() == Some("master") => Ok(master),
            _ => Err((ErrorKind::Io, "what Sentinel named is no master (any more)").into()),
        }
    }
}

async fn connect(info: ConnectionInfo) -> Result<Link, RedisError> {
    Link::connect(&Client::open(info)?).await
}

fn named(reply: &Value) -> Option<(String, u16)> {
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

impl Source for Sentinels {
    fn connect(&self, _lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let sentinels = self.clone();
        Box::pin(async move { Ok(Box::new(within(sentinels.master()).await?) as Box<dyn Connection>) })
    }

    fn describe(&self) -> &str {
        &self.0.place
    }

    fn places(&self) -> Vec<String> {
        let Shared { sentinels, name, settings, .. } = &*self.0;
        let database = settings.redis_settings().db();
        sentinels.iter().map(|sentinel| format!("{name:?} of {}/{database}", sentinel.addr())).collect()
    }

    /// For the master, for Sentinels, or for both: for those whose addresses say so.
    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Source>, Error> {
        let is_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let Shared { sentinels, name, settings, .. } = &*self.0;
        let by_tls = |info: &ConnectionInfo| if is_tls(info) { tls.applied(info.clone()) } else { Ok(info.clone()) };
        if !sentinels.iter().chain([settings]).any(is_tls) {
            // It says why.
            tls.applied(settings.clone())?;
        }
        let sentinels = sentinels.iter().map(by_tls).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self::new(sentinels, name, by_tls(settings)?)?))
    }
}
