//! How keys are named in Redis.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tower_ratelimit::key::{EncodeKey, KeyWriter};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, Gcra, Limit, Limiter, Quota, Redis};

use crate::helpers::{is_allowed, patient};
use crate::server::Server;

const QUOTA: Quota = Quota::per_hour(10);

fn written(key: &(impl EncodeKey + ?Sized)) -> String {
    let mut writer = KeyWriter::new();
    key.encode(&mut writer);
    writer.as_str().to_owned()
}

/// No two of them are written alike, and nothing that means something elsewhere in a key's name is written at all.
fn all_differ<K: EncodeKey + Debug>(keys: impl IntoIterator<Item = K>) {
    let mut seen = HashMap::new();
    for key in keys {
        let text = written(&key);
        assert!(!text.contains([':', '{', '}', '#', '*', '?', '[', ' ', '\n', '~']), "{text}");
        assert!(text.is_ascii(), "{text}");
        if let Some(other) = seen.insert(text.clone(), format!("{key:?}")) {
            panic!("{key:?} and {other} are both written as {text}");
        }
    }
}

const TEXTS: [&str; 24] = [
    "", "%", "%%", "%25", "a", "A", ",", "a,b", "(", ")", "()", "(a)", "a:b", "{a}", "{", "}", "-", "-1", "1", "ä",
    "日本", "\0", " ", "~",
];

#[test]
fn no_two_texts_are_written_alike() {
    all_differ(TEXTS);
    all_differ(TEXTS.map(str::as_bytes).map(<[u8]>::to_vec));
    all_differ((0..=255).map(|byte| vec![byte]));
    all_differ((0..=255).map(|byte| [b'%', byte]));
}

#[test]
fn no_two_tuples_are_written_alike() {
    let pairs = || TEXTS.into_iter().flat_map(|a| TEXTS.map(|b| (a, b)));
    all_differ(pairs());
    all_differ(pairs().map(|(a, b)| ((a, b), a)));
    all_differ(pairs().map(|(a, b)| (a, (b, a))));
    all_differ(
        pairs()
            .flat_map(|(a, b)| [(Some(a), Some(b)), (Some(a), None), (None, Some(b)), (None, None)])
            .collect::<std::collections::BTreeSet<_>>(),
    );
    all_differ([(1, 23), (12, 3), (-1, 23), (-12, 3), (i64::MIN, i64::MAX)]);
    all_differ([None, Some(None), Some(Some(()))]);
    all_differ([(None, 1), (Some(()), 1)]);
}

#[test]
fn numbers_and_addresses_read_as_they_are() {
    assert_eq!(written(&7_u8), "7");
    assert_eq!(written(&u128::MAX), u128::MAX.to_string());
    assert_eq!(written(&i64::MIN), i64::MIN.to_string());
    assert_eq!(written(&IpAddr::from([192, 0, 2, 7])), "192.0.2.7");
    assert_eq!(written(&Ipv6Addr::LOCALHOST), "%3A%3A1");
    assert_eq!(written(&SocketAddr::from(([127, 0, 0, 1], 80))), "127.0.0.1%3A80");
    assert_eq!(written("bob@example.com"), "bob@example.com");
    assert_eq!(written(&("a b", 'ü', true, [1_u8, b'a'])), "a%20b,%C3%BC,true,%01a");
    assert_eq!(written(&("api", (1, ("x", 2)))), "api,(1,(x,2))");
    assert_eq!(written(&Arc::<str>::from("x")), written("x"));
}

fn limiter<Key: ?Sized>(server: &Server, limits: impl IntoRedisLimits<Key>) -> Redis<Key> {
    patient(server.open(), "a:b {c}", limits)
}

#[tokio::test]
async fn the_name_that_is_told_is_the_name_in_redis() {
    let server = Server::start();
    let limiter = limiter::<str>(&server, Limit::new("per:{user}", Gcra::new(QUOTA)));
    let long = "x".repeat(100_000);
    for key in TEXTS.into_iter().chain(["{tag}:x", &long[..128], &long[..129], &long]) {
        assert!(is_allowed(&limiter, key).await);
        let told = limiter.redis_key("per:{user}", key).expect("there is such a limit");
        assert_eq!(server.keys(), std::slice::from_ref(&told));
        // Nothing that came from a user or a name is a tag, or a further part.
        assert_eq!(told.split(':').count(), 5, "{told}");
        assert!(!told.contains(['{', '}']), "{told}");
        assert!(told.len() < 256, "{}", told.len());
        server.command(&["FLUSHALL"]);
    }
    assert!(limiter.redis_key("user", "x").expect_err("no such limit").is_config());
}

#[tokio::test]
async fn long_keys_are_still_told_apart() {
    let server = Server::start();
    let limiter = limiter::<str>(&server, Gcra::new(Quota::per_hour(1)));
    let long = "x".repeat(1000);
    for key in [format!("{long}a"), format!("{long}b"), format!("a{long}")] {
        assert!(is_allowed(&limiter, &key).await);
        assert!(!is_allowed(&limiter, &key).await);
    }
    assert_eq!(server.keys().len(), 3);
    // Nor can a text be made to look like one that was hashed.
    let hashed = limiter.redis_key("default", &long).expect("a name");
    let end = hashed.rsplit(':').next().expect("a part").to_owned();
    assert!(end.starts_with('#'));
    assert_ne!(limiter.redis_key("default", &end).expect("a name"), hashed);
}

#[tokio::test]
async fn hashed_keys_hold_no_text_of_their_users() {
    let server = Server::start();
    let secret = b"0123456789abcdef".to_vec();
    let build = |secret: Vec<u8>| {
        Redis::<str>::builder(server.open(), "api", Gcra::new(Quota::per_hour(1))).hash_keys(secret).build()
    };
    let (here, there) = (build(secret.clone()).expect("limits"), build(secret.clone()).expect("limits"));
    assert!(is_allowed(&here, "alice@example.com").await);
    assert!(!is_allowed(&there, "alice@example.com").await, "the same secret, the same key");
    assert!(is_allowed(&there, "bob").await);
    let keys = server.keys();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| !key.contains("alice") && !key.contains("bob") && key.contains(":~")), "{keys:?}");
    assert!(keys.contains(&here.redis_key("default", "bob").expect("a name")));
    // Who has no secret can't name a key that is hashed.
    let plain = Redis::<str>::new(server.open(), "api", Gcra::new(QUOTA));
    for key in &keys {
        let end = key.rsplit(':').next().expect("a part");
        assert!(!keys.contains(&plain.redis_key("default", end).expect("a name")));
    }

    here.rotate_secret(b"another secret, 16+".to_vec()).expect("a good secret");
    assert!(is_allowed(&here, "bob").await, "every key begins anew");
    assert_eq!(server.keys().len(), 3);
    assert!(here.rotate_secret(b"short".to_vec()).expect_err("too short").is_config());
    assert!(plain.rotate_secret(secret).expect_err("nothing is hashed").is_config());
    assert!(build(b"short".to_vec()).expect_err("too short").is_config());
}

#[tokio::test]
async fn limits_that_count_by_other_parts_have_keys_of_their_own() {
    let server = Server::start();
    let limits = (
        Limit::new("user", Gcra::new(QUOTA)).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("team", Gcra::new(QUOTA)).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("all", Gcra::new(QUOTA)).keyed_by(|_: &(u64, u64)| ()),
    );
    let limiter = Redis::builder(server.open(), "api", limits).prefix("mine").build().expect("limits");
    limiter.acquire(&(7, 7), AcquireOptions::default()).await.expect("an answer");
    let mut keys = server.keys();
    keys.sort();
    assert_eq!(keys, ["mine:api:all:bucket2:", "mine:api:team:bucket2:7", "mine:api:user:bucket2:7"]);
}
