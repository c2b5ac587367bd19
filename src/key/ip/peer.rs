use std::net::{IpAddr, SocketAddr};

use http::{Request, header};

use crate::key::MissingKey;

/// Finds the peer's address of a request: the other end of the connection.
///
/// [`FromExtensions`] is the default. Closures `Fn(&Request) -> Option<IpAddr>` are the other source: see
/// [`PeerIp::peer`](crate::PeerIp::peer).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the peer's address of a `{Request}`",
    note = "use the default for an `http::Request`, and for other requests a closure `|request: &{Request}|` that \
            returns `Option<IpAddr>`"
)]
pub trait PeerAddress<Request> {
    /// Returns the peer's address, if the request carries it.
    fn peer_address(&self, request: &Request) -> Option<IpAddr>;

    /// Whether a proxy has added the client's address to the request.
    fn is_forwarded(&self, request: &Request) -> bool {
        let _ = request;
        false
    }
}

impl<Request, F: Fn(&Request) -> Option<IpAddr>> PeerAddress<Request> for F {
    fn peer_address(&self, request: &Request) -> Option<IpAddr> {
        self(request)
    }
}

/// An extractor that finds the whole address by which [`InNetworks`](crate::key::InNetworks) exempts a request.
pub trait KnownAddress<Request> {
    /// Returns the address, unless it is unknown or of a trusted proxy.
    fn known_address(&self, request: &Request) -> Option<IpAddr>;
}

/// Reads the peer's address from the request's extensions.
///
/// The extension is axum's `ConnectInfo<SocketAddr>` (feature `axum`), tonic's `TcpConnectInfo` (feature `tonic`),
/// `TlsConnectInfo<TcpConnectInfo>` (feature `tonic-tls`), or a [`SocketAddr`] that a custom server inserts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromExtensions;

impl<B> PeerAddress<Request<B>> for FromExtensions {
    #[inline]
    fn peer_address(&self, request: &Request<B>) -> Option<IpAddr> {
        let extensions = request.extensions();
        #[cfg(feature = "axum")]
        if let Some(address) = axum_peer(extensions) {
            // axum's address is borrowed: only its IP address is copied.
            return Some(address.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(address) = tonic_peer(extensions) {
            return Some(address.ip());
        }
        extensions.get::<SocketAddr>().map(SocketAddr::ip)
    }

    fn is_forwarded(&self, request: &Request<B>) -> bool {
        request.headers().contains_key("x-forwarded-for") || request.headers().contains_key(header::FORWARDED)
    }
}

#[cfg(feature = "axum")]
#[inline]
fn axum_peer(extensions: &http::Extensions) -> Option<&SocketAddr> {
    use axum::extract::connect_info::ConnectInfo;

    extensions.get::<ConnectInfo<SocketAddr>>().map(|info| &info.0).or_else(|| mock_addr(extensions))
}

/// Set by tests of an application.
#[cfg(feature = "axum")]
#[cold]
fn mock_addr(extensions: &http::Extensions) -> Option<&SocketAddr> {
    use axum::extract::connect_info::MockConnectInfo;

    extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| &info.0)
}

#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &http::Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;

    let peer = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    // tonic's own TLS inserts `TcpConnectInfo` as well. A server that passes TLS streams to tonic inserts this one only.
    #[cfg(feature = "tonic-tls")]
    let peer = peer.or_else(|| {
        use tonic::transport::server::TlsConnectInfo;

        extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr()
    });
    peer
}

#[cold]
pub(in crate::key) fn missing_peer() -> MissingKey {
    MissingKey::from_server(NO_PEER)
}

#[cfg(feature = "axum")]
const NO_PEER: &str = "peer address missing: the request's extensions do not contain it; in axum, serve the router with \
                       into_make_service_with_connect_info::<SocketAddr>(); for tonic, enable the feature `tonic`; on a \
                       Unix socket behind a proxy, use `ClientIp` with `trust_absent_peer`";

#[cfg(all(feature = "tonic", not(feature = "axum")))]
const NO_PEER: &str = "peer address missing: the request's extensions do not contain it; for axum, enable the feature \
                       `axum` of tower-ratelimit; for TLS streams of your own in tonic, enable `tonic-tls`";

#[cfg(not(any(feature = "axum", feature = "tonic")))]
const NO_PEER: &str = "peer address missing: the features `axum` and `tonic` of tower-ratelimit are off, so only a \
                       `SocketAddr` in the request's extensions is read; enable the feature of your server";
