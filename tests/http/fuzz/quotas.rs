//! Texts that a service reads from its settings: quotas, networks, addresses of servers.

use std::error::Error;
use std::net::IpAddr;

use tower_ratelimit::key::{InNetworks, TrustedProxies};
use tower_ratelimit::{PeerIp, Quota, RedisServer};

const MAX_LIMIT: u64 = 1 << 53;

/// Panics if a law of these texts is violated.
pub(crate) fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(quota) = text.parse::<Quota>() {
        assert_eq!(quota.to_string().parse(), Ok(quota), "the written form is read as the same quota");
        let json = serde_json::to_string(&quota).expect("a quota is a text");
        assert_eq!(json, format!("\"{quota}\""));
        assert_eq!(serde_json::from_str::<Quota>(&json).expect("a quota"), quota);
        assert!(quota.limit() <= MAX_LIMIT && !quota.period().is_zero());
        // The number before the period is the limit.
        let digits: String = text.trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '_').collect();
        assert_eq!(digits.replace('_', "").parse(), Ok(quota.limit()), "{text:?}");
    }
    let (proxies, networks) = (TrustedProxies::parse([text]), InNetworks::parse(PeerIp::new(), [text]));
    // Proxies in a network of all addresses would let every client forge its address.
    let covers_all = networks.as_ref().is_ok_and(|networks| {
        let contains = |address: &str| networks.contains(address.parse().expect("an address"));
        contains("0.0.0.0") && contains("255.255.255.255")
            || contains("::") && contains("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    });
    assert_eq!(proxies.is_ok(), networks.is_ok() && !covers_all, "one syntax for networks");
    let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
    // An IPv4-mapped address counts as IPv4, so only networks of such addresses contain it.
    if let (Ok(networks), Ok(address)) = (networks, address)
        && address.to_canonical() == address
    {
        assert!(networks.contains(address), "a network contains its address");
    }
    password_stays_secret(text);
}

fn password_stays_secret(text: &str) {
    const PASSWORD: &str = "correct-horse-battery";
    for address in [format!("redis://user:{PASSWORD}{text}"), format!("{text}://user:{PASSWORD}@127.0.0.1")] {
        let Err(error) = RedisServer::open(&address) else { continue };
        let sources = std::iter::successors(Some(&error as &dyn Error), |&error| error.source());
        for error in sources {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(PASSWORD), "{address:?}: {shown}");
        }
    }
}
