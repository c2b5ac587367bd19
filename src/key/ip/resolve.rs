use std::net::IpAddr;

use http::HeaderMap;

use super::field::{self, Field};
use super::trusted_proxies::TrustedProxies;

/// The hop that a request counts by.
#[derive(Clone, Copy)]
pub(super) struct Hop {
    /// Only a peer can lack an address.
    pub(super) address: Option<IpAddr>,
    /// Whether this hop is a trusted proxy, and the client therefore unknown.
    pub(super) is_trusted: bool,
}

/// The client, as far as trusted hops vouch for it: the first hop from the right, the peer being the rightmost, that is
/// not trusted. If the hops end before, or one tells no address, the last one whose address is known.
pub(super) fn client(trusted: &TrustedProxies, field: &Field, peer: Option<IpAddr>, headers: &HeaderMap) -> Hop {
    let address = peer.map(|address| address.to_canonical());
    let peer = Hop { address, is_trusted: trusted.include(0, address) };
    if !peer.is_trusted {
        return peer;
    }
    match field {
        Field::XForwardedFor => last_known(trusted, peer, field::x_forwarded_for(headers)),
        Field::Forwarded => last_known(trusted, peer, field::forwarded(headers)),
        // The only address that this field can tell is the client's: it is behind all hops that are counted.
        Field::Single(name) => field::single(headers, name).map_or(peer, |address| Hop {
            address: Some(address),
            is_trusted: trusted.include(usize::MAX, Some(address)),
        }),
    }
}

/// `hops` go from right to left, beginning with the one that the peer names.
fn last_known(trusted: &TrustedProxies, peer: Hop, hops: impl Iterator<Item = Option<IpAddr>>) -> Hop {
    let mut known = peer;
    for (hop, address) in (1..).zip(hops) {
        // Left of what tells no address anybody may have written.
        let Some(_) = address else { break };
        known = Hop { address, is_trusted: trusted.include(hop, address) };
        if !known.is_trusted {
            break;
        }
    }
    known
}
