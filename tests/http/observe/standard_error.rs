//! A debug build without an observer prints its warnings on the standard error, each once.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::observe::Event;
use tower_ratelimit::{FixedWindow, Http, InFlight, Memory, PeerIp, Quota, RateLimitLayer};

type Body = http_body_util::Empty<bytes::Bytes>;

/// The variable that chooses what the child process does.
const PROGRAM: &str = "STANDARD_ERROR_PROGRAM";

async fn send<S, B>(service: &S, peer: Option<[u8; 4]>)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
{
    let mut request = Request::new(Body::default());
    if let Some(peer) = peer {
        request.extensions_mut().insert(SocketAddr::from((peer, 1)));
        request.headers_mut().insert("x-forwarded-for", "203.0.113.7".parse().expect("a value"));
    }
    for _ in 0..200 {
        service.clone().oneshot(request.clone()).await.expect("a response");
    }
}

/// The program of the child process: two equal layers receive 200 requests each.
#[tokio::test]
#[ignore = "a child process runs it"]
async fn program() {
    let program = std::env::var(PROGRAM).unwrap_or_default();
    let answer = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::default())));
    let responder = || Http::without_headers().map_body();
    for _ in 0..2 {
        let window = Memory::<IpAddr, _>::new(FixedWindow::new(Quota::per_hour(1_000_000)));
        let layer = RateLimitLayer::new(PeerIp::new(), window).responder(responder());
        let in_flight = Memory::<IpAddr, _>::new(InFlight::new(10));
        match program.as_str() {
            "proxy" => send(&layer.layer(answer), Some([10, 0, 0, 1])).await,
            "no proxy" => send(&layer.layer(answer), Some([203, 0, 113, 9])).await,
            "no address" => send(&layer.layer(answer), None).await,
            // Nothing tells the limiter when a request ends.
            "no end" => {
                let layer = RateLimitLayer::new(PeerIp::new(), in_flight).responder(responder());
                send(&layer.layer(answer), Some([203, 0, 113, 9])).await;
            }
            "observed proxy" => send(&layer.observe(|_: &Event<'_>| {}).layer(answer), Some([10, 0, 0, 1])).await,
            "observed no address" => send(&layer.observe(|_: &Event<'_>| {}).layer(answer), None).await,
            _ => {}
        }
    }
}

/// Returns the lines that a child process prints on its standard error.
fn lines_of(program: &str) -> Vec<String> {
    let test = std::env::current_exe().expect("this test's own path");
    let arguments = ["standard_error::program", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let output = Command::new(test).args(arguments).env(PROGRAM, program).output().expect("a process");
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && stdout.contains("1 passed"), "{program}: {stdout}");
    String::from_utf8(output.stderr).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn debug_build_without_observer_prints_each_warning_once() {
    const END: &str = " (printed in debug builds only: observers receive such warnings)";

    // Once for the process, which has two layers.
    for (program, start) in [
        ("proxy", "tower-ratelimit: one limit for all clients: "),
        ("no address", "tower-ratelimit: server misconfigured: "),
        ("no end", "tower-ratelimit: server misconfigured: "),
    ] {
        let lines = lines_of(program);
        if cfg!(debug_assertions) {
            let is_warning = |line: &String| line.starts_with(start) && line.ends_with(END);
            assert!(lines.len() == 1 && lines.iter().all(is_warning), "{program}: {lines:#?}");
        } else {
            assert_eq!(lines, [""; 0], "{program}");
        }
    }
}

#[test]
fn observed_layer_and_layer_without_a_mistake_print_nothing() {
    for program in ["observed proxy", "observed no address", "no proxy"] {
        assert_eq!(lines_of(program), [""; 0], "{program}");
    }
}
