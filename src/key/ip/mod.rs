//! IP addresses as keys.
//!
//! - `peer`: where the address of the connection's peer is found; `peer_ip`: [`PeerIp`]
//! - `client_ip`: [`ClientIp`], the client's address behind proxies
//! - `trusted_proxies`: [`TrustedProxies`], the proxies whose header fields are believed
//! - `resolve`: from the peer leftwards, past trusted proxies, to the client
//! - `field`, `forwarded`: the addresses in a header field, from right to left
//! - `node`: the address that a proxy's entry is written as
//! - `network`, `prefix`: networks, and the network prefix that stands for an address

mod client_ip;
mod field;
mod forwarded;
mod network;
mod node;
mod peer;
mod peer_ip;
mod prefix;
mod resolve;
mod trusted_proxies;

pub use self::client_ip::ClientIp;
pub(super) use self::network::Networks;
pub use self::peer::{FromExtensions, PeerAddress};
pub use self::peer_ip::PeerIp;
pub use self::trusted_proxies::TrustedProxies;
