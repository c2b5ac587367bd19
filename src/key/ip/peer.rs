use std::net::{IpAddr, SocketAddr};

use http::{Extensions, Request};

use crate::key::MissingKey;

/// Says where a request came from: the address of the socket's other end.
///
/// [`FromExtensions`] is what [`PeerIp`](crate::PeerIp) and [`ClientIp`](crate::ClientIp) use unless they are told
/// otherwise. Closures `Fn(&Request) -> Option<IpAddr>` serve as well, for servers that keep the address elsewhere:
///
/// ```
/// use std::net::IpAddr;
///
/// use http::Request;
/// use tower_ratelimit::PeerIp;
/// use tower_ratelimit::key::{ExtractKey, Extracted};
///
/// /// What a server of our own notes of a connection.
/// #[derive(Clone)]
/// struct Connection {
///     from: IpAddr,
/// }
///
/// let key = PeerIp::new().peer(|request: &Request<()>| Some(request.extensions().get::<Connection>()?.from));
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(Connection { from: IpAddr::from([192, 0, 2, 1]) });
/// assert_eq!(key.extract(&request), Extracted::Key(IpAddr::from([192, 0, 2, 1])));
/// ```
///
/// No header field is a peer's address: whoever sends the request writes them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say where a `{Request}` came from",
    note = "for an `http::Request` leave it to `FromExtensions`; else give a closure `|request: &{Request}|` that \
            returns `Option<IpAddr>`"
)]
pub trait PeerAddress<Request> {
    /// The address of the socket's other end, if there is one.
    fn peer_address(&self, request: &Request) -> Option<IpAddr>;
}

impl<Request, F: Fn(&Request) -> Option<IpAddr>> PeerAddress<Request> for F {
    fn peer_address(&self, request: &Request) -> Option<IpAddr> {
        self(request)
    }
}

/// The peer's address as servers put it into a request's extensions: axum's `ConnectInfo<SocketAddr>` (feature `axum`),
/// tonic's `TcpConnectInfo` (feature `tonic`; over tonic's own TLS as well), `TlsConnectInfo<TcpConnectInfo>` (feature
/// `tonic-tls`), or a [`SocketAddr`], which your own server inserts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromExtensions;

impl<B> PeerAddress<Request<B>> for FromExtensions {
    #[inline(always)]
    fn peer_address(&self, request: &Request<B>) -> Option<IpAddr> {
        let extensions = request.extensions();
        // What is lent is not copied whole, only to be cut down.
        let lent = axum_peer(extensions).map(SocketAddr::ip);
        let copied = || tonic_peer(extensions).map(|address| address.ip());
        lent.or_else(copied).or_else(|| extensions.get::<SocketAddr>().map(SocketAddr::ip))
    }
}

#[cfg(feature = "axum")]
#[inline]
fn axum_peer(extensions: &Extensions) -> Option<&SocketAddr> {
    use axum::extract::connect_info::ConnectInfo;

    extensions.get::<ConnectInfo<SocketAddr>>().map(|info| &info.0).or_else(|| mocked(extensions))
}

/// In tests of the application.
#[cfg(feature = "axum")]
#[cold]
fn mocked(extensions: &Extensions) -> Option<&SocketAddr> {
    use axum::extract::connect_info::MockConnectInfo;

    extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| &info.0)
}

#[cfg(not(feature = "axum"))]
fn axum_peer(_: &Extensions) -> Option<&SocketAddr> {
    None
}

#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;

    let plain = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    plain.or_else(|| tls_peer(extensions))
}

#[cfg(not(feature = "tonic"))]
fn tonic_peer(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// tonic's own TLS notes both; a TLS stream that is handed to it, this alone.
#[cfg(feature = "tonic-tls")]
fn tls_peer(extensions: &Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

    extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr()
}

#[cfg(all(feature = "tonic", not(feature = "tonic-tls")))]
fn tls_peer(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// The request does not carry the peer's address.
#[cold]
pub(in crate::key) fn missing_peer() -> MissingKey {
    MissingKey::from_server(
        "peer address missing: the request does not carry it; in axum, serve the router by \
         into_make_service_with_connect_info::<SocketAddr>()",
    )
}
