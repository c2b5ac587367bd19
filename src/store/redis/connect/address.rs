use std::time::Duration;

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
use redis::ConnectionAddr;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::error::Error;

/// The idle time after which TCP probes the peer, and the time between two such probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Parses an address such as `redis://host:port/database`, and adds the TCP settings of this crate.
pub(crate) fn parse_address(address: &str) -> Result<ConnectionInfo, Error> {
    let info = address.into_connection_info().map_err(address_error)?;
    // A NAT or a load balancer may drop an idle connection without closing it.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    #[cfg(any(
        target_os = "android",
        target_os = "freebsd",
        target_os = "ios",
        target_os = "linux",
        target_os = "macos",
        target_os = "windows"
    ))]
    let keepalive = keepalive.with_interval(KEEPALIVE);
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)))
}

/// The error for an invalid address. The address may contain a password, so the error does not repeat it.
pub(super) fn address_error(error: RedisError) -> Error {
    Error::config(
        "invalid Redis address: it must be redis://[user:password@]host[:port][/database], rediss:// for TLS (feature \
         `redis-tls`), or unix:///path/to/socket",
    )
    .with_source(error)
}

/// Returns the settings for another host and port.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
pub(crate) fn at_address(template: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let mut address = template.addr().clone();
    if let ConnectionAddr::Tcp(own, at) | ConnectionAddr::TcpTls { host: own, port: at, .. } = &mut address {
        (*own, *at) = (host, port);
    }
    template.clone().set_addr(address)
}
