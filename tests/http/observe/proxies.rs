//! A layer that counts by the address of a proxy warns once.

use std::convert::Infallible;
use std::net::IpAddr;

use http::{Request, Response};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::{ExactPaths, ExemptIf, FromExtension, Method};
use tower_ratelimit::{ExtractKey, Http, PeerIp, RateLimitLayer};

use crate::support::{FailingLimiter, RecordedEvents};

type Body = http_body_util::Empty<bytes::Bytes>;

/// Returns the warnings of a layer that receives these requests: the peer, and a field that a proxy adds.
async fn warnings<K>(extractor: K, requests: impl IntoIterator<Item = (IpAddr, Option<&'static str>)>) -> usize
where
    K: ExtractKey<Request<Body>> + Clone,
{
    let events = RecordedEvents::default();
    // Whatever the limiter decides.
    let layer = RateLimitLayer::new(extractor, FailingLimiter).responder(Http::without_headers().map_body());
    let layer = layer.observe(events.clone());
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::default()))));
    for ((peer, field), method) in requests.into_iter().zip([http::Method::GET, http::Method::POST].into_iter().cycle())
    {
        let mut request = Request::new(Body::default());
        *request.method_mut() = method;
        request.extensions_mut().insert(std::net::SocketAddr::from((peer, 1)));
        if let Some(field) = field {
            request.headers_mut().insert(field, "203.0.113.7".parse().expect("a value"));
        }
        service.clone().oneshot(request).await.expect("a response");
    }
    events.take().iter().filter(|line| line.starts_with("warning: one limit for all clients")).count()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[tokio::test]
async fn peer_ip_behind_a_proxy_emits_one_warning() {
    let field = Some("x-forwarded-for");
    for peer in ["10.1.2.3", "127.0.0.1", "192.168.0.9", "::1", "fd00::1", "::ffff:10.0.0.1"] {
        let proxied = vec![(ip(peer), field); 300];
        assert_eq!(warnings(PeerIp::new(), proxied.clone()).await, 1, "{peer}");
        // Probes of the platform come directly.
        let probes = proxied.iter().flat_map(|request| [*request, (ip("10.0.0.9"), None)]);
        assert_eq!(warnings(PeerIp::new(), probes).await, 1, "{peer}");
        let exempt = ExemptIf::new(PeerIp::new(), ExactPaths::new(["/health"]));
        assert_eq!(warnings(exempt, proxied.clone()).await, 1, "{peer}");
        assert_eq!(warnings((PeerIp::new(), Method), proxied.clone()).await, 1, "{peer}");
        assert_eq!(warnings(FromExtension::<Unset>::new().or(PeerIp::new()), proxied).await, 1, "{peer}");
    }
    assert_eq!(warnings(PeerIp::new(), vec![(ip("10.1.2.3"), Some("forwarded")); 100]).await, 1);
    // Two proxies that `PeerIp` counts as one.
    let replicas = ["fd00::1", "fd00::2"].map(|peer| (ip(peer), field)).into_iter().cycle();
    assert_eq!(warnings(PeerIp::new(), replicas.take(100)).await, 1);
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Unset;

#[tokio::test]
async fn other_traffic_emits_no_warning_of_a_proxy() {
    let field = Some("x-forwarded-for");
    let local = ip("10.1.2.3");
    // Few requests, clients that write the field themselves, clients of a private network, and no proxy at all.
    assert_eq!(warnings(PeerIp::new(), vec![(local, field); 49]).await, 0);
    assert_eq!(warnings(PeerIp::new(), vec![(ip("203.0.113.9"), field); 300]).await, 0);
    let clients = (0..300_u32).map(|n| (IpAddr::from([10, 0, 0, u8::try_from(n % 7).expect("small")]), field));
    assert_eq!(warnings(PeerIp::new(), clients).await, 0);
    assert_eq!(warnings(PeerIp::new(), vec![(local, None); 300]).await, 0);
    // Another source of the address, which knows more than the connection.
    let source = PeerIp::new().peer(move |_: &Request<Body>| Some(local));
    assert_eq!(warnings(source, vec![(local, field); 300]).await, 0);
    // Only the first requests are searched.
    let late = vec![(local, None); 1000].into_iter().chain(vec![(local, field); 300]);
    assert_eq!(warnings(PeerIp::new(), late).await, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// The rule, by a model that keeps all requests.
    #[test]
    fn warning_follows_the_first_requests(requests in prop::collection::vec((0..20_u8, any::<bool>()), 0..140)) {
        // One request in twenty comes from another proxy.
        let peers: Vec<_> = requests
            .iter()
            .map(|(peer, is_proxied)| {
                (IpAddr::from([10, 0, 0, u8::from(*peer == 0)]), is_proxied.then_some("x-forwarded-for"))
            })
            .collect();
        let proxied: Vec<_> = peers.iter().filter(|(_, field)| field.is_some()).map(|(peer, _)| *peer).collect();
        let expected = usize::from(proxied.len() >= 50 && proxied[..50].iter().all(|peer| *peer == proxied[0]));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        prop_assert_eq!(runtime.block_on(warnings(PeerIp::new(), peers)), expected);
    }
}
