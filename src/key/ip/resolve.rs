use std::net::IpAddr;

use http::HeaderMap;

use super::field::{self, Field};
use super::trusted_proxies::TrustedProxies;

/// The hop whose address is the key of a request.
#[derive(Clone, Copy)]
pub(super) struct Hop {
    /// `None` only for a peer without an address.
    pub(super) address: Option<IpAddr>,
    /// Whether this hop is a trusted proxy. The client is unknown then.
    pub(super) is_trusted: bool,
}

/// Returns the first untrusted hop from the right. The peer is the rightmost hop.
///
/// If the hops end before an untrusted one, or a hop has no address, returns the last trusted hop.
pub(super) fn resolve_client(
    trusted: &TrustedProxies,
    field: &Field,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Hop {
    let address = peer.map(|address| address.to_canonical());
    let peer = Hop { address, is_trusted: trusted.trusts(0, address) };
    if !peer.is_trusted {
        return peer;
    }
    match field {
        Field::XForwardedFor => last_trusted(trusted, peer, field::x_forwarded_for(headers)),
        Field::Forwarded => last_trusted(trusted, peer, field::forwarded(headers)),
        // `usize::MAX`: with a number of trusted hops, the single address is always the client's.
        Field::Single(name) => field::single(headers, name).map_or(peer, |address| Hop {
            address: Some(address),
            is_trusted: trusted.trusts(usize::MAX, Some(address)),
        }),
    }
}

/// Returns the first untrusted hop, or the last trusted one. `hops` are from right to left, without the peer.
fn last_trusted(trusted: &TrustedProxies, peer: Hop, hops: impl Iterator<Item = Option<IpAddr>>) -> Hop {
    let mut known = peer;
    for (hop, address) in (1..).zip(hops) {
        // The client may have written everything to the left of a hop without an address.
        let Some(_) = address else { break };
        known = Hop { address, is_trusted: trusted.trusts(hop, address) };
        if !known.is_trusted {
            break;
        }
    }
    known
}
