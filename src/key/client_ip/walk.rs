use std::net::IpAddr;

use http::HeaderMap;

use super::field::{self, Field};
use super::trust::TrustedProxies;

/// The client, as far as trusted hops vouch for it: the first hop from the right, the peer being the rightmost, that is
/// not trusted. If the hops end before, or one tells no address, the last one whose address is known.
///
/// None if that has no address: only the peer can lack one.
pub(super) fn client(
    trusted: &TrustedProxies,
    field: &Field,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let peer = peer.map(|address| address.to_canonical());
    if !trusted.include(0, peer) {
        return peer;
    }
    match field {
        Field::XForwardedFor => last_known(trusted, peer, field::x_forwarded_for(headers)),
        Field::Forwarded => last_known(trusted, peer, field::forwarded(headers)),
        Field::Single(name) => field::single(headers, name).or(peer),
    }
}

/// `hops` go from right to left, beginning with the one that the peer names.
fn last_known(
    trusted: &TrustedProxies,
    peer: Option<IpAddr>,
    hops: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let mut known = peer;
    for (hop, address) in (1..).zip(hops) {
        // Left of what tells no address anybody may have written.
        let Some(address) = address else { break };
        known = Some(address);
        if !trusted.include(hop, known) {
            break;
        }
    }
    known
}
