//! Warnings about limiters of one process that share keys and conflict. They need no connection.

use std::sync::{Arc, Mutex};

use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::{FixedWindow, Quota, Redis, RedisServer};

#[derive(Clone, Debug, Default)]
struct Warnings(Arc<Mutex<usize>>);

impl Observer for Warnings {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Warning { message, .. } = event {
            assert!(message.contains("different quotas"), "{message}");
            *self.0.lock().expect("a number") += 1;
        }
    }
}

/// Builds two limiters and returns the number of warnings about their conflict.
fn warnings_of(name: &str, first: &RedisServer, second: &RedisServer) -> usize {
    let warnings = Warnings::default();
    let build = |server: &RedisServer, quota| {
        let limits = FixedWindow::new(Quota::per_hour(quota));
        Redis::<u64>::builder(server.clone(), name, limits).observe(warnings.clone()).build().expect("limits")
    };
    let _both = (build(first, 10), build(second, 20));
    *warnings.0.lock().expect("a number")
}

fn cluster(nodes: &[u16]) -> RedisServer {
    RedisServer::cluster(nodes.iter().map(|port| format!("redis://127.0.0.1:{port}"))).expect("addresses")
}

fn sentinel(sentinels: &[u16], master: &str, settings: &str) -> RedisServer {
    let sentinels = sentinels.iter().map(|port| format!("redis://127.0.0.1:{port}"));
    RedisServer::sentinel_with(sentinels, master, settings).expect("addresses")
}

#[test]
fn conflict_is_detected_by_a_shared_cluster_node() {
    assert_eq!(warnings_of("cluster", &cluster(&[1, 2, 3]), &cluster(&[4, 3])), 1);
    assert_eq!(warnings_of("cluster", &cluster(&[1, 2]), &cluster(&[3, 4])), 0);
    let node = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    assert_eq!(warnings_of("cluster", &cluster(&[1]), &node), 0);
}

#[test]
fn conflict_is_detected_by_a_shared_sentinel() {
    let first = sentinel(&[1, 2], "mymaster", "redis://127.0.0.1");
    assert_eq!(warnings_of("sentinel", &first, &sentinel(&[2, 3], "mymaster", "redis://:secret@elsewhere")), 1);
    for other in [
        sentinel(&[3], "mymaster", "redis://127.0.0.1"),
        sentinel(&[1, 2], "other", "redis://127.0.0.1"),
        sentinel(&[1, 2], "mymaster", "redis://127.0.0.1/1"),
    ] {
        assert_eq!(warnings_of("sentinel", &first, &other), 0);
    }
}
