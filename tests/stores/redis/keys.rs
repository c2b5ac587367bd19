//! Names of keys in Redis.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tower_ratelimit::key::{EncodeKey, KeyWriter};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, Gcra, Limit, Limiter, Quota, Redis};

use crate::helpers::{LONG_DEADLINE, is_allowed, redis_limiter};
use crate::server::Server;

const QUOTA: Quota = Quota::per_hour(10);

fn encoded(key: &(impl EncodeKey + ?Sized)) -> String {
    let mut writer = KeyWriter::new();
    key.encode(&mut writer);
    writer.as_str().to_owned()
}

/// Requires different encodings without characters that have a meaning in Redis key names.
fn check_encodings_differ<K: EncodeKey + Debug>(keys: impl IntoIterator<Item = K>) {
    let mut seen = HashMap::new();
    for key in keys {
        let text = encoded(&key);
        assert!(!text.contains([':', '{', '}', '#', '*', '?', '[', ' ', '\n', '~']), "{text}");
        assert!(text.is_ascii(), "{text}");
        if let Some(other) = seen.insert(text.clone(), format!("{key:?}")) {
            panic!("{key:?} and {other} have the same encoding {text}");
        }
    }
}

const TEXTS: [&str; 24] = [
    "", "%", "%%", "%25", "a", "A", ",", "a,b", "(", ")", "()", "(a)", "a:b", "{a}", "{", "}", "-", "-1", "1", "ä",
    "日本", "\0", " ", "~",
];

#[test]
fn texts_have_unique_encodings() {
    check_encodings_differ(TEXTS);
    check_encodings_differ(TEXTS.map(str::as_bytes).map(<[u8]>::to_vec));
    check_encodings_differ((0..=255).map(|byte| vec![byte]));
    check_encodings_differ((0..=255).map(|byte| [b'%', byte]));
}

#[test]
fn tuples_have_unique_encodings() {
    let pairs = || TEXTS.into_iter().flat_map(|a| TEXTS.map(|b| (a, b)));
    check_encodings_differ(pairs());
    check_encodings_differ(pairs().map(|(a, b)| ((a, b), a)));
    check_encodings_differ(pairs().map(|(a, b)| (a, (b, a))));
    check_encodings_differ(
        pairs()
            .flat_map(|(a, b)| [(Some(a), Some(b)), (Some(a), None), (None, Some(b)), (None, None)])
            .collect::<std::collections::BTreeSet<_>>(),
    );
    check_encodings_differ([(1, 23), (12, 3), (-1, 23), (-12, 3), (i64::MIN, i64::MAX)]);
    check_encodings_differ([None, Some(None), Some(Some(()))]);
    check_encodings_differ([(None, 1), (Some(()), 1)]);
}

#[test]
fn numbers_and_addresses_are_encoded_readably() {
    assert_eq!(encoded(&7_u8), "7");
    assert_eq!(encoded(&u128::MAX), u128::MAX.to_string());
    assert_eq!(encoded(&i64::MIN), i64::MIN.to_string());
    assert_eq!(encoded(&IpAddr::from([192, 0, 2, 7])), "192.0.2.7");
    assert_eq!(encoded(&Ipv6Addr::LOCALHOST), "%3A%3A1");
    assert_eq!(encoded(&SocketAddr::from(([127, 0, 0, 1], 80))), "127.0.0.1%3A80");
    assert_eq!(encoded("bob@example.com"), "bob@example.com");
    assert_eq!(encoded(&("a b", 'ü', true, [1_u8, b'a'])), "a%20b,%C3%BC,true,%01a");
    assert_eq!(encoded(&("api", (1, ("x", 2)))), "api,(1,(x,2))");
    assert_eq!(encoded(&Arc::<str>::from("x")), encoded("x"));
}

fn limiter<Key: ?Sized>(server: &Server, limits: impl IntoRedisLimits<Key>) -> Redis<Key> {
    redis_limiter(server.open(), "a:b {c}", limits)
}

#[tokio::test]
async fn redis_key_returns_the_name_in_redis() {
    let server = Server::start();
    let limiter = limiter::<str>(&server, Limit::new("per:{user}", Gcra::new(QUOTA)));
    let long = "x".repeat(100_000);
    for key in TEXTS.into_iter().chain(["{tag}:x", &long[..128], &long[..129], &long]) {
        assert!(is_allowed(&limiter, key).await);
        let name = limiter.redis_key("per:{user}", key).expect("a limit of this name");
        assert_eq!(server.keys(), std::slice::from_ref(&name));
        // No user key and no name contributes a hash tag or another part.
        assert_eq!(name.split(':').count(), 5, "{name}");
        assert!(!name.contains(['{', '}']), "{name}");
        assert!(name.len() < 256, "{}", name.len());
        server.command(&["FLUSHALL"]);
    }
    assert!(limiter.redis_key("user", "x").expect_err("no such limit").is_config());
}

#[tokio::test]
async fn long_keys_have_unique_names() {
    let server = Server::start();
    let limiter = limiter::<str>(&server, Gcra::new(Quota::per_hour(1)));
    let long = "x".repeat(1000);
    for key in [format!("{long}a"), format!("{long}b"), format!("a{long}")] {
        assert!(is_allowed(&limiter, &key).await);
        assert!(!is_allowed(&limiter, &key).await);
    }
    assert_eq!(server.keys().len(), 3);
    // A text that equals a hashed encoding has another key.
    let hashed = limiter.redis_key("default", &long).expect("a name");
    let end = hashed.rsplit(':').next().expect("a part").to_owned();
    assert!(end.starts_with('#'));
    assert_ne!(limiter.redis_key("default", &end).expect("a name"), hashed);
}

#[tokio::test]
async fn hashed_keys_contain_no_user_text() {
    let server = Server::start();
    let secret = b"0123456789abcdef".to_vec();
    let build = |secret: Vec<u8>| {
        let builder = Redis::<str>::builder(server.open(), "api", Gcra::new(Quota::per_hour(1)));
        builder.deadline(LONG_DEADLINE).hash_keys(secret).build()
    };
    let (first, second) = (build(secret.clone()).expect("limits"), build(secret.clone()).expect("limits"));
    assert!(is_allowed(&first, "alice@example.com").await);
    assert!(!is_allowed(&second, "alice@example.com").await, "equal secrets give equal keys");
    assert!(is_allowed(&second, "bob").await);
    let keys = server.keys();
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| !key.contains("alice") && !key.contains("bob") && key.contains(":~")), "{keys:?}");
    assert!(keys.contains(&first.redis_key("default", "bob").expect("a name")));
    // A limiter without the secret can't produce a hashed key.
    let plain = Redis::<str>::new(server.open(), "api", Gcra::new(QUOTA));
    for key in &keys {
        let end = key.rsplit(':').next().expect("a part");
        assert!(!keys.contains(&plain.redis_key("default", end).expect("a name")));
    }

    first.rotate_secret(b"another secret, 16+".to_vec()).expect("a good secret");
    assert!(is_allowed(&first, "bob").await, "a new secret gives new keys");
    assert_eq!(server.keys().len(), 3);
    assert!(first.rotate_secret(b"short".to_vec()).expect_err("too short").is_config());
    assert!(plain.rotate_secret(secret).expect_err("no hashed keys").is_config());
    assert!(build(b"short".to_vec()).expect_err("too short").is_config());
}

#[tokio::test]
async fn limits_by_different_sub_keys_have_separate_keys() {
    let server = Server::start();
    let limits = (
        Limit::new("user", Gcra::new(QUOTA)).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("team", Gcra::new(QUOTA)).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("all", Gcra::new(QUOTA)).keyed_by(|_: &(u64, u64)| ()),
    );
    let builder = Redis::builder(server.open(), "api", limits).prefix("mine").deadline(LONG_DEADLINE);
    let limiter = builder.build().expect("limits");
    let _ = limiter.acquire(&(7, 7), AcquireOptions::default()).await.expect("an answer");
    let mut keys = server.keys();
    keys.sort();
    assert_eq!(keys, ["mine:api:all:bucket2:", "mine:api:team:bucket2:7", "mine:api:user:bucket2:7"]);
}
