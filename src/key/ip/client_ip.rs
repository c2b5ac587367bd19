use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Request};

use super::field::Field;
use super::peer::{FromExtensions, PeerAddress, missing_peer};
use super::prefix::{Prefixes, prefix_setters};
use super::resolve::{self, Hop};
use super::trusted_proxies::TrustedProxies;
use crate::error::Error;
use crate::key::{ExtractKey, Extracted, MissingKey};

/// The client's address behind proxies: the rightmost one that is not a trusted proxy.
///
/// The socket's other end, the peer, is the first hop. If it is no [trusted proxy](TrustedProxies), it is the client,
/// and no header field is read. If it is, it has named whom it has the request from: that is the next hop, and so on.
/// The first hop that is not trusted is the client; what stands left of it, anybody may have written, and is not looked
/// at.
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
/// use tower_ratelimit::{ClientIp, Gcra, Memory, Quota, RateLimitLayer};
///
/// let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"])?;
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(ClientIp::x_forwarded_for(proxies), limiter);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
///
/// The field must be one that your proxies *append to or overwrite* in every request. One that they hand through as it
/// came is the client's own.
///
/// # When a hop tells no address
///
/// It may be `unknown`, a name that hides it, an empty element, anything; there may be no field at all, or a field of
/// one address more than once. Then the request counts by the last hop whose address is known, a proxy's: such requests
/// share a limit, and never go without one. If all hops are trusted it counts by the last of them: a request from
/// within.
///
/// # What stands for an address
///
/// An IPv4 address mapped into IPv6, or translated by a NAT64 (`64:ff9b::/96`), counts as the IPv4 address. An IPv6
/// address counts by its first 64 bits, as a client has at least all addresses that share them;
/// [`ipv6_prefix`](Self::ipv6_prefix) chooses another length. Who has a /48 has 65536 of those. A second tier holds it:
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
/// # Where the peer's address comes from
///
/// The same as for [`PeerIp`](crate::PeerIp): from the request's extensions, or as [`peer`](Self::peer) says. A request
/// without one lacks its key by the server's fault, and is refused. Behind a Unix socket say
/// [`trust_absent_peer`](Self::trust_absent_peer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp<P = FromExtensions> {
    trusted: TrustedProxies,
    field: Field,
    prefixes: Prefixes,
    peer: P,
    trusts_absent_peer: bool,
}

impl ClientIp {
    /// Reads `X-Forwarded-For`: all its lines, as one list.
    #[must_use]
    pub const fn x_forwarded_for(trusted: TrustedProxies) -> Self {
        Self::new(Field::XForwardedFor, trusted)
    }

    /// Reads `Forwarded` (RFC 7239): the `for` of each element, in all its lines.
    #[must_use]
    pub const fn forwarded(trusted: TrustedProxies) -> Self {
        Self::new(Field::Forwarded, trusted)
    }

    /// Reads the one address in a field such as `CF-Connecting-IP` or `X-Real-IP`, if the peer is trusted and the field
    /// comes exactly once. (`X-Forwarded-For` and `Forwarded` are lists, also if they are named here.)
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
    #[must_use]
    pub fn header(name: HeaderName, trusted: TrustedProxies) -> Self {
        Self::new(Field::named(name), trusted)
    }

    const fn new(field: Field, trusted: TrustedProxies) -> Self {
        Self { trusted, field, prefixes: Prefixes::DEFAULT, peer: FromExtensions, trusts_absent_peer: false }
    }
}

impl<P> ClientIp<P> {
    prefix_setters!();

    /// Sets where the peer's address is found: see [`PeerAddress`].
    pub fn peer<Q>(self, peer: Q) -> ClientIp<Q> {
        let Self { trusted, field, prefixes, trusts_absent_peer, .. } = self;
        ClientIp { trusted, field, prefixes, peer, trusts_absent_peer }
    }

    /// Trusts a peer that has no address: for a server on a Unix socket, to which only proxies can connect.
    ///
    /// Without the header field there is no address to count by, and the key is missing by the server's fault. If the
    /// field holds no address, the key is unusable, and the request refused.
    ///
    /// # Where it must not be said
    ///
    /// On a server that listens on TCP and does not tell its peers' addresses. There nobody has one, and every client
    /// would be trusted.
    #[must_use]
    pub const fn trust_absent_peer(mut self) -> Self {
        self.trusts_absent_peer = true;
        self
    }

    /// What stands for an address: made IPv4 first if it stands for such a one, then cut to the prefix.
    #[must_use]
    pub fn key_of(&self, address: IpAddr) -> IpAddr {
        self.prefixes.key_of(address)
    }

    /// The client's whole address, for a log: a proxy's address if the client is unknown. For an exemption use
    /// [`ClientNetworks`](crate::key::ClientNetworks), which never exempts a proxy's address.
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
    /// If the request has no peer's address, and none that may stand for it.
    pub fn client_of<B>(&self, request: &Request<B>) -> Result<IpAddr, MissingKey>
    where
        P: PeerAddress<Request<B>>,
    {
        let hop = self.hop(request)?;
        hop.address.ok_or_else(|| self.missing_client(hop, request.headers()))
    }

    /// The client's whole address, unless the last hop that is known is a trusted proxy.
    pub(in crate::key) fn known_client<B>(&self, request: &Request<B>) -> Option<IpAddr>
    where
        P: PeerAddress<Request<B>>,
    {
        self.hop(request).ok().filter(|hop| !hop.is_trusted)?.address
    }

    fn hop<B>(&self, request: &Request<B>) -> Result<Hop, MissingKey>
    where
        P: PeerAddress<Request<B>>,
    {
        let peer = self.peer.peer_address(request);
        if peer.is_none() && !self.trusts_absent_peer {
            return Err(missing_peer());
        }
        Ok(resolve::client(&self.trusted, &self.field, peer, request.headers()))
    }

    #[cold]
    fn missing_client(&self, hop: Hop, headers: &HeaderMap) -> MissingKey {
        if hop.is_trusted && headers.contains_key(self.field.name()) {
            return MissingKey::unusable(format!("the header field {} holds no address", self.field.name()));
        }
        MissingKey::from_server(format!(
            "client address missing: the peer has no address, and no trusted proxy names the client in the header field \
             {}; trust the proxy, or let it send the field",
            self.field.name()
        ))
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
