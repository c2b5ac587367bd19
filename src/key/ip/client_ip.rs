use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Request};

use super::field::Field;
use super::peer::{FromExtensions, KnownAddress, PeerAddress, missing_peer};
use super::prefix::{Prefixes, prefix_setters};
use super::resolve::{Hop, resolve_client};
use super::trusted_proxies::TrustedProxies;
use crate::error::Error;
use crate::key::{ExtractKey, Extracted, MissingKey};

/// The client's address behind proxies: the rightmost address that is not a trusted proxy.
///
/// The first hop is the connection's peer. If the peer is not a [trusted proxy](TrustedProxies), the peer is the
/// client, and no header is read. A trusted proxy has written the address of the next hop into a header, and so on.
/// The first hop that is not trusted is the client. Addresses to its left are ignored, because the client may have
/// written them.
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
/// use tower_ratelimit::{ClientIp, Gcra, Memory, Quota, RateLimitLayer};
///
/// let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"])?;
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(ClientIp::x_forwarded_for(proxies), limiter);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
///
/// Your proxies must *append to or overwrite* the header in every request. A header that they pass through unchanged is
/// written by the client.
///
/// # Hops without an address
///
/// A hop may be `unknown`, an obfuscated name, an empty element (the list may end in a comma) or malformed. The header may be missing, or a header
/// for one address may be repeated. Then the key is the last known hop's address, which is a proxy's: such requests
/// share a limit. If all hops are trusted, the key is the last hop's address: a request from your own network.
///
/// # Prefixes
///
/// An IPv4-mapped IPv6 address, and a NAT64 address (`64:ff9b::/96`, and a /96 in `64:ff9b:1::/48`), has the key of the IPv4
/// address. Any other address in `64:ff9b:1::/48` is its own key. The key of an
/// IPv6 address is its first 64 bits, because one client has at least a /64; [`ipv6_prefix`](Self::ipv6_prefix) sets
/// another length. A client with a /48 has 65536 such keys. Add a second limit for the wider network:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::TrustedProxies;
/// use tower_ratelimit::{ClientIp, Gcra, Limit, Memory, Quota, RateLimitLayer};
///
/// const NETWORK: ClientIp = ClientIp::x_forwarded_for(TrustedProxies::hops(1)).ipv6_prefix(48).ipv4_prefix(24);
/// const CLIENT: ClientIp = ClientIp::x_forwarded_for(TrustedProxies::hops(1));
///
/// type Addresses = (IpAddr, IpAddr);
/// let limiter = Memory::new((
///     Limit::new("client", Gcra::new(Quota::per_second(10))).keyed_by(|(client, _): &Addresses| *client),
///     Limit::new("network", Gcra::new(Quota::per_second(200))).keyed_by(|(_, network): &Addresses| *network),
/// ));
/// let layer = RateLimitLayer::new((CLIENT, NETWORK), limiter);
/// ```
///
/// # The peer's address
///
/// The extractor reads the peer's address from the request's extensions, as [`PeerIp`](crate::PeerIp) does.
/// [`peer`](Self::peer) sets another source. If the address is missing, the server is
/// [misconfigured](MissingKey::from_server). For a server on a Unix socket, call
/// [`trust_absent_peer`](Self::trust_absent_peer).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ClientIp<P = FromExtensions> {
    trusted: TrustedProxies,
    field: Field,
    prefixes: Prefixes,
    peer_source: P,
    trusts_absent_peer: bool,
}

impl ClientIp {
    /// Reads `X-Forwarded-For`: all lines, as one list.
    pub const fn x_forwarded_for(trusted: TrustedProxies) -> Self {
        Self::new(Field::XForwardedFor, trusted)
    }

    /// Reads `Forwarded` (RFC 7239): the `for` parameter of each element, in all lines.
    pub const fn forwarded(trusted: TrustedProxies) -> Self {
        Self::new(Field::Forwarded, trusted)
    }

    /// Reads the single address in a header such as `CF-Connecting-IP` or `X-Real-IP`.
    ///
    /// The header must not be repeated. `X-Forwarded-For` and `Forwarded` are read as lists.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_ratelimit::ClientIp;
    /// use tower_ratelimit::key::TrustedProxies;
    ///
    /// let proxies = TrustedProxies::parse(["173.245.48.0/20", "2400:cb00::/32"])?;
    /// let key = ClientIp::header(HeaderName::from_static("cf-connecting-ip"), proxies);
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn header(name: HeaderName, trusted: TrustedProxies) -> Self {
        Self::new(Field::from_header_name(name), trusted)
    }

    const fn new(field: Field, trusted: TrustedProxies) -> Self {
        Self { trusted, field, prefixes: Prefixes::DEFAULT, peer_source: FromExtensions, trusts_absent_peer: false }
    }
}

impl<P> ClientIp<P> {
    prefix_setters!();

    /// Sets the source of the peer's address: see [`PeerIp::peer`](crate::PeerIp::peer).
    pub fn peer<Q>(self, source: Q) -> ClientIp<Q> {
        let Self { trusted, field, prefixes, trusts_absent_peer, .. } = self;
        ClientIp { trusted, field, prefixes, peer_source: source, trusts_absent_peer }
    }

    /// Trusts a peer without an address, for servers on a Unix socket.
    ///
    /// Only proxies must be able to connect to the socket.
    ///
    /// If the header is missing, or holds no address, the key is unusable (status 400). A missing header does not prove
    /// that the proxy is misconfigured: some proxies, such as Apache, remove each header that the client names in
    /// `Connection`. So a client can remove the header, and gets neither an exemption nor an alert for it.
    ///
    /// # Security
    ///
    /// Do not call this on a server that listens on TCP and does not provide its peers' addresses: every client would
    /// be trusted.
    pub const fn trust_absent_peer(mut self) -> Self {
        self.trusts_absent_peer = true;
        self
    }

    /// Returns the key of an address: converted to IPv4 if possible, then cut to the prefix.
    pub fn key_of(&self, address: IpAddr) -> IpAddr {
        self.prefixes.key_of(address)
    }

    /// Returns the client's whole address, or a proxy's address if the client is unknown.
    ///
    /// For logs. For exemptions, use [`InNetworks`](crate::key::InNetworks), which never exempts a proxy's
    /// address.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::ClientIp;
    /// use tower_ratelimit::key::TrustedProxies;
    ///
    /// let client = ClientIp::x_forwarded_for(TrustedProxies::parse(["10.0.0.0/8"])?);
    /// let log = move |request: &Request<String>| match client.client_of(request) {
    ///     Ok(address) => println!("request from {address}"),
    ///     Err(missing) => println!("request from an unknown client: {missing}"),
    /// };
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the request carries neither the peer's address nor, with `trust_absent_peer`, an address in the header.
    pub fn client_of<B>(&self, request: &Request<B>) -> Result<IpAddr, MissingKey>
    where
        P: PeerAddress<Request<B>>,
    {
        let hop = self.hop(request)?;
        hop.address.ok_or_else(|| self.missing_client(hop, request.headers()))
    }

    fn hop<B>(&self, request: &Request<B>) -> Result<Hop, MissingKey>
    where
        P: PeerAddress<Request<B>>,
    {
        let peer = self.peer_source.peer_address(request);
        if peer.is_none() && !self.trusts_absent_peer {
            return Err(missing_peer());
        }
        Ok(resolve_client(&self.trusted, &self.field, peer, request.headers()))
    }

    #[cold]
    fn missing_client(&self, hop: Hop, headers: &HeaderMap) -> MissingKey {
        let name = self.field.name();
        if !hop.is_trusted {
            return MissingKey::from_server(
                "client address missing: the peer has no address and is not a trusted proxy; trust one hop or more, or \
                 serve on a socket whose peers have addresses",
            );
        }
        let problem = if headers.contains_key(name) { "holds no address" } else { "is missing" };
        MissingKey::unusable(format!("the header {name} {problem}"))
    }
}

impl<B, P: PeerAddress<Request<B>>> ExtractKey<Request<B>> for ClientIp<P> {
    type Key = IpAddr;

    fn extract(&self, request: &Request<B>) -> Extracted<IpAddr> {
        match self.client_of(request) {
            Ok(address) => Extracted::Key(self.key_of(address)),
            Err(missing) => Extracted::Missing(missing),
        }
    }
}

/// The client's whole address, unless the last known hop is a trusted proxy.
impl<B, P: PeerAddress<Request<B>>> KnownAddress<Request<B>> for ClientIp<P> {
    fn known_address(&self, request: &Request<B>) -> Option<IpAddr> {
        self.hop(request).ok().filter(|hop| !hop.is_trusted)?.address
    }
}
