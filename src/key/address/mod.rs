//! Addresses as keys: where the peer's address is found, what stands for an address, networks, and [`PeerIp`].

mod network;
mod peer;
mod peer_ip;
mod prefix;

pub(super) use self::network::Networks;
pub(super) use self::peer::missing_peer;
pub use self::peer::{FromExtensions, PeerAddress};
pub use self::peer_ip::PeerIp;
pub(super) use self::prefix::{Prefixes, prefix_setters};
