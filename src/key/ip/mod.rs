//! IP addresses as keys.
//!
//! - `peer`: sources of the peer's address; `peer_ip`: [`PeerIp`]
//! - `client_ip`: [`ClientIp`], the client's address behind proxies
//! - `trusted_proxies`: [`TrustedProxies`], the proxies whose headers are trusted
//! - `resolve`: finds the client, from the peer leftwards past trusted proxies
//! - `field`, `forwarded`: parse the addresses in a header, from right to left
//! - `node`: parses one address as proxies write it
//! - `network`, `prefix`: networks, and the network prefix that is the key of an address

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
pub use self::peer::{FromExtensions, KnownAddress, PeerAddress};
pub use self::peer_ip::PeerIp;
pub use self::trusted_proxies::TrustedProxies;
