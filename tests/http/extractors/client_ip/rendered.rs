//! Well-formed fields in every form of their grammars: the extracted client equals that of a slow and simple model.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::ClientIp;
use tower_ratelimit::key::TrustedProxies;

use super::support::{FORWARDED, X_FORWARDED_FOR, ip, key_of, networks, request};

/// The node of a hop.
#[derive(Clone, Debug)]
enum Node {
    Address(IpAddr),
    /// An identifier that is not an address.
    Hidden(&'static str),
}

#[derive(Clone, Debug)]
struct Hop {
    node: Node,
    port: &'static str,
    brackets: bool,
    quotes: bool,
    /// Whether each character is escaped by a backslash, cyclically.
    escapes: Vec<bool>,
    before: Vec<(&'static str, &'static str)>,
    after: Vec<(&'static str, &'static str)>,
    name: &'static str,
    new_line: bool,
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        3 => (0u8..4).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        1 => any::<[u8; 4]>().prop_map(IpAddr::from),
        1 => any::<[u8; 16]>().prop_map(IpAddr::from),
        1 => Just(ip("::ffff:10.0.0.9")),
        1 => Just(ip("fd00::1")),
    ]
}

fn hop() -> impl Strategy<Value = Hop> {
    let node = prop_oneof![
        8 => address().prop_map(Node::Address),
        1 => prop::sample::select(&["unknown", "_hidden", "_"][..]).prop_map(Node::Hidden),
    ];
    let pair = || {
        let name = prop::sample::select(&["by", "proto", "host", "x-four", "fo", "fore", "!"][..]);
        let value = prop::sample::select(
            &[
                "https",
                "a.test",
                "\"\"",
                "\"a, for=10.0.0.1\"",
                "\"a;b\"",
                "\"\\\"\"",
                "\"\\\\\"",
                "\"\\\\\\\"=\\\"\"",
                "\"for=\"",
                "\"x=\\\"y\\\\\"",
            ][..],
        );
        (name, value)
    };
    let port = prop::sample::select(&["", "", ":80", ":65535", ":_port"][..]);
    let name = prop::sample::select(&["for", "For", "FOR"][..]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let pairs = (vec(pair(), 0..3), vec(pair(), 0..3));
    (node, port, name, flags, pairs, vec(prop::bool::weighted(0.1), 1..9)).prop_map(
        |(node, port, name, (brackets, quotes, new_line), (before, after), escapes)| Hop {
            node,
            port,
            brackets,
            quotes,
            escapes,
            before,
            after,
            name,
            new_line,
        },
    )
}

impl Hop {
    fn plain(&self) -> String {
        match &self.node {
            Node::Hidden(name) => (*name).to_owned(),
            Node::Address(IpAddr::V4(v4)) => format!("{v4}{}", self.port),
            Node::Address(IpAddr::V6(v6)) if self.brackets || !self.port.is_empty() => format!("[{v6}]{}", self.port),
            Node::Address(IpAddr::V6(v6)) => v6.to_string(),
        }
    }

    fn in_x_forwarded_for(&self) -> String {
        if self.quotes { format!("\"{}\"", self.plain()) } else { self.plain() }
    }

    fn in_forwarded(&self) -> String {
        let plain = self.plain();
        let mut value = plain.clone();
        if self.quotes {
            let escaped = plain.chars().zip(self.escapes.iter().cycle());
            let escaped = escaped.map(|(char, escape)| if *escape { format!("\\{char}") } else { char.to_string() });
            value = format!("\"{}\"", escaped.collect::<String>());
        }
        let pairs = self.before.iter().map(|(name, value)| format!("{name}={value}"));
        let pairs = pairs.chain([format!("{}={value}", self.name)]);
        pairs.chain(self.after.iter().map(|(name, value)| format!("{name}={value}"))).collect::<Vec<_>>().join(";")
    }

    fn address(&self) -> Option<IpAddr> {
        match self.node {
            Node::Address(address) => Some(address.to_canonical()),
            Node::Hidden(_) => None,
        }
    }
}

fn lines(hops: &[Hop], render: impl Fn(&Hop) -> String) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for hop in hops {
        match lines.last_mut() {
            Some(line) if !hop.new_line => {
                line.push_str(", ");
                line.push_str(&render(hop));
            }
            _ => lines.push(render(hop)),
        }
    }
    lines
}

/// Walks from the peer to the left past trusted hops, and returns the client.
fn expected(peer: IpAddr, hops: &[Hop], is_trusted: impl Fn(usize, IpAddr) -> bool) -> IpAddr {
    let mut client = peer;
    for distance in 0..=hops.len() {
        if !is_trusted(distance, client) || distance == hops.len() {
            return client;
        }
        match hops[hops.len() - 1 - distance].address() {
            Some(address) => client = address,
            None => return client,
        }
    }
    client
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3_000) })]

    #[test]
    fn client_of_well_formed_fields_equals_the_model(hops in vec(hop(), 0..6), peer in address(), count in 0usize..7) {
        let trusted = networks(&["10.0.0.0/8", "fd00::/8"]);
        let in_networks = |_, address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets()[0] == 10,
            IpAddr::V6(v6) => v6.octets()[0] == 0xfd,
        };
        let by_networks = expected(peer.to_canonical(), &hops, in_networks);
        let by_hops = expected(peer.to_canonical(), &hops, |distance, _| distance < count);
        let whole = |extractor: ClientIp| extractor.ipv6_prefix(128);
        let x_forwarded_for = request(Some(peer), &X_FORWARDED_FOR, lines(&hops, Hop::in_x_forwarded_for));
        let forwarded = request(Some(peer), &FORWARDED, lines(&hops, Hop::in_forwarded));
        for (trusted, client) in [(trusted, by_networks), (TrustedProxies::hops(count), by_hops)] {
            let extractor = whole(ClientIp::x_forwarded_for(trusted.clone()));
            prop_assert_eq!(extractor.client_of(&x_forwarded_for).ok(), Some(client), "{:?}", x_forwarded_for);
            prop_assert_eq!(key_of(&extractor, &x_forwarded_for), extractor.key_of(client));
            let extractor = whole(ClientIp::forwarded(trusted));
            prop_assert_eq!(extractor.client_of(&forwarded).ok(), Some(client), "{:?}", forwarded);
        }
    }
}
