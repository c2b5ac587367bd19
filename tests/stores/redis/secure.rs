//! Redis over TLS with custom certificates, and with passwords: a single server, a cluster and Sentinel.

use std::cell::RefCell;
use std::error::Error as _;
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use tower_ratelimit::{Error, FixedWindow, Quota, RedisServer, RedisTls};

use crate::certificates::Certificates;
use crate::cluster_server::Cluster;
use crate::credentials::{Vault, set_password};
use crate::helpers::{is_allowed, redis_limiter};
use crate::idle_connections::kill_all;
use crate::load::answered;
use crate::process::{free_port, wait_until};
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

/// Requires that two of three requests are allowed on each of these keys.
async fn check_works(server: RedisServer, keys: u64) {
    let limiter = redis_limiter::<u64>(server, "api", FixedWindow::new(Quota::per_hour(2)));
    limiter.health_check().await.unwrap_or_else(|error| panic!("{error:?}"));
    for key in 0..keys {
        let allowed =
            [is_allowed(&limiter, &key).await, is_allowed(&limiter, &key).await, is_allowed(&limiter, &key).await];
        assert_eq!(allowed, [true, true, false], "key {key}");
    }
}

/// Returns the health check's error with its cause.
async fn health_check_error(server: RedisServer) -> String {
    let limiter = redis_limiter::<u64>(server, "api", FixedWindow::new(Quota::per_hour(2)));
    let error = limiter.health_check().await.expect_err("an unusable server");
    assert!(error.is_unavailable(), "{error:?}");
    format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default())
}

fn by_tls(server: &Server, credentials: &str) -> RedisServer {
    let port = server.tls_port().expect("a TLS port");
    RedisServer::open(&format!("rediss://{credentials}127.0.0.1:{port}")).expect("an address")
}

#[tokio::test]
async fn idle_connection_closed_over_tls() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "no"]);
    let by_tls = by_tls(&server, "").with_tls(&certificates.trusted()).expect("certificates");
    let limiter = redis_limiter::<u64>(by_tls, "api", FixedWindow::new(Quota::per_hour(11)));
    for round in 0..=10 {
        assert!(is_allowed(&limiter, &1).await, "round {round}");
        kill_all(&server);
    }
    assert!(!is_allowed(&limiter, &1).await, "each decision is charged once");
}

#[tokio::test]
async fn tls_server_with_a_trusted_certificate_works() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "no"]);
    check_works(by_tls(&server, "").with_tls(&certificates.trusted()).expect("certificates"), 3).await;
    // The system's certificates do not contain this authority, and another authority is not trusted either.
    let unknown = health_check_error(by_tls(&server, "")).await;
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    let other = by_tls(&server, "").with_tls(&Certificates::issue().trusted()).expect("certificates");
    assert!(health_check_error(other).await.contains("certificate"));
    // The certificate is valid for the address, not for a host name.
    let port = server.tls_port().expect("a TLS port");
    let named = RedisServer::open(&format!("rediss://localhost:{port}")).expect("an address");
    let named = health_check_error(named.with_tls(&certificates.trusted()).expect("certificates")).await;
    assert!(named.contains("not valid for name"), "{named}");
    health_check_error(RedisServer::open(&format!("redis://127.0.0.1:{port}")).expect("an address")).await;
}

#[tokio::test]
async fn client_certificate_is_sent_to_the_server() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "yes", "--requirepass", "secret"]);
    let [certificate, key] = &certificates.client;
    let known = certificates.trusted().client_certificate(certificate.as_str(), key.as_str());
    check_works(by_tls(&server, ":secret@").with_tls(&known).expect("certificates"), 3).await;
    health_check_error(by_tls(&server, ":secret@").with_tls(&certificates.trusted()).expect("certificates")).await;
    let wrong = health_check_error(by_tls(&server, ":wrong@").with_tls(&known).expect("certificates")).await;
    assert!(wrong.contains("refused the user's name or password"), "{wrong}");
    assert!(!format!("{known:?}").contains("PRIVATE"), "{known:?}");
}

/// A managed Redis: TLS, and a user whose password changes. The order of the two settings does not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_a_provider_rotate_over_tls() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "no"]);
    set_password(&server, "password-0");
    for (name, tls_first) in [("first", true), ("last", false)] {
        let vault = Vault::new("password-0");
        set_password(&server, "password-0");
        let lifetime = Some(Duration::from_millis(400));
        let address = by_tls(&server, "");
        let trusted = |server: RedisServer| server.with_tls(&certificates.trusted()).expect("certificates");
        let address = if tls_first {
            vault.authenticates(&trusted(address), lifetime)
        } else {
            trusted(vault.authenticates(&address, lifetime))
        };
        let limiter = redis_limiter::<u64>(address, name, FixedWindow::new(Quota::per_hour(1000)));
        limiter.health_check().await.unwrap_or_else(|error| panic!("{error:?}"));
        vault.rotate(&server, &limiter).await;
        let clients = server.command(&["CLIENT", "LIST"]);
        assert_eq!(clients.matches(" user=app ").count(), 1, "{clients}");
        drop(limiter);
        wait_until("the connection ends", || !server.command(&["CLIENT", "LIST"]).contains(" user=app "));
    }
    let log = server.command(&["ACL", "LOG"]);
    assert!(log.starts_with("*0\r\n"), "no authentication failed: {log}");
}

#[tokio::test]
async fn invalid_certificates_are_an_error() {
    let certificates = Certificates::issue();
    let open = |address| RedisServer::open(address).expect("an address");
    let is_config = |result: Result<RedisServer, Error>| assert!(result.expect_err("invalid certificates").is_config());
    for nonsense in ["", "nonsense", "-----BEGIN CERTIFICATE-----\n???\n-----END CERTIFICATE-----\n"] {
        is_config(open("rediss://127.0.0.1").with_tls(&RedisTls::new().root_certificates(nonsense)));
        let [certificate, key] = &certificates.client;
        is_config(open("rediss://127.0.0.1").with_tls(&RedisTls::new().client_certificate(nonsense, key.as_str())));
        is_config(
            open("rediss://127.0.0.1").with_tls(&RedisTls::new().client_certificate(certificate.as_str(), nonsense)),
        );
    }
    is_config(open("redis://127.0.0.1").with_tls(&certificates.trusted()));
    is_config(RedisServer::cluster(["redis://127.0.0.1"]).expect("an address").with_tls(&certificates.trusted()));
    let sentinels = |address| RedisServer::sentinel([address], "mymaster").expect("an address");
    is_config(sentinels("redis://127.0.0.1").with_tls(&certificates.trusted()));
    assert!(sentinels("rediss://127.0.0.1").with_tls(&certificates.trusted()).is_ok());
    let manager = RedisConnectionManager::new("redis://127.0.0.1").expect("an address");
    is_config(RedisServer::from(Pool::builder().build_unchecked(manager)).with_tls(&certificates.trusted()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_works_over_tls_and_with_a_password() {
    let certificates = Certificates::issue();
    let arguments = ["--tls-auth-clients", "no", "--requirepass", "secret", "--masterauth", "secret"];
    let cluster = Cluster::masters(3, |_| certificates.server(true, &arguments));
    // One node returns the other nodes and their TLS ports.
    let open = |credentials: &str| {
        let port = cluster.nodes[1].tls_port().expect("a TLS port");
        RedisServer::cluster([format!("rediss://{credentials}127.0.0.1:{port}")]).expect("an address")
    };
    check_works(open(":secret@").with_tls(&certificates.trusted()).expect("certificates"), 60).await;
    assert!(cluster.nodes.iter().all(|node| node.keys().len() > 5));
    assert!(health_check_error(open(":secret@")).await.contains("UnknownIssuer"));
    for wrong in [":wrong@", ""] {
        let error = health_check_error(open(wrong).with_tls(&certificates.trusted()).expect("certificates")).await;
        assert!(error.contains("password"), "{error}");
    }
}

/// The permissions that `docs/redis.md` lists for a cluster's user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_permissions_suffice_in_a_cluster() {
    let cluster = Cluster::start();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">secret", "~ratelimit:*"];
    user.extend(["+eval", "+evalsha", "+time", "+get", "+mget", "+exists", "+set", "+psetex", "+del"]);
    user.extend(["+pexpire", "+lrange", "+lindex", "+lset", "+ltrim", "+rpush", "+cluster|slots", "+asking"]);
    for node in &cluster.nodes {
        assert!(node.command(&user).starts_with("+OK"));
        // The default user can't run scripts.
        assert!(node.command(&["ACL", "SETUSER", "default", "-@scripting"]).starts_with("+OK"));
    }
    let addresses = |user: &str| {
        let nodes = cluster.nodes.iter();
        nodes.map(|node| format!("redis://{user}127.0.0.1:{}", node.port)).collect::<Vec<_>>()
    };
    check_works(RedisServer::cluster(addresses("app:secret@")).expect("addresses"), 60).await;
    assert!(
        health_check_error(RedisServer::cluster(addresses("")).expect("addresses"))
            .await
            .contains("grant EVAL, EVALSHA")
    );
    let wrong = health_check_error(RedisServer::cluster(addresses("app:wrong@")).expect("addresses")).await;
    assert!(wrong.contains("password"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_master_have_separate_passwords() {
    let passwords = ["--requirepass", "of-the-master", "--masterauth", "of-the-master"];
    let deployment = SentinelDeployment::with(
        |arguments| Server::with(&[arguments, &passwords].concat()),
        || {
            let own = "requirepass of-sentinels\nsentinel sentinel-pass of-sentinels\n";
            format!("sentinel auth-pass mymaster of-the-master\n{own}")
        },
        Some("of-sentinels"),
    );
    let addresses = |password: &str| {
        let sentinels = deployment.addresses().into_iter();
        sentinels.map(|address| address.replace("redis://", &format!("redis://:{password}@"))).collect::<Vec<_>>()
    };
    let open = |sentinels: &str, master: &str| {
        let settings = format!("redis://:{master}@anywhere");
        RedisServer::sentinel_with(addresses(sentinels), "mymaster", &settings).expect("addresses")
    };
    check_works(open("of-sentinels", "of-the-master"), 3).await;
    assert!(health_check_error(open("of-sentinels", "wrong")).await.contains("password"));
    assert!(health_check_error(open("wrong", "of-the-master")).await.contains("password"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_master_work_over_tls() {
    let certificates = Certificates::issue();
    let ports = RefCell::new(Vec::new());
    let mut deployment = SentinelDeployment::with(
        |arguments| {
            let tls = ["--tls-replication", "yes", "--tls-auth-clients", "no"];
            certificates.server(false, &[arguments, &tls].concat())
        },
        || {
            let port = free_port();
            ports.borrow_mut().push(port);
            let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| certificates.folder.file(name));
            format!(
                "tls-port {port}\ntls-ca-cert-file {ca}\ntls-cert-file {certificate}\ntls-key-file {key}\n\
                 tls-replication yes\ntls-auth-clients no\n"
            )
        },
        None,
    );
    let open = || {
        let addresses = ports.borrow().iter().map(|port| format!("rediss://127.0.0.1:{port}")).collect::<Vec<_>>();
        RedisServer::sentinel_with(addresses, "mymaster", "rediss://anywhere").expect("addresses")
    };
    check_works(open().with_tls(&certificates.trusted()).expect("certificates"), 3).await;
    assert!(health_check_error(open()).await.contains("UnknownIssuer"));
    // The new master has TLS as well.
    deployment.master.kill();
    deployment.fail_over();
    let limiter = redis_limiter::<u64>(
        open().with_tls(&certificates.trusted()).expect("certificates"),
        "api",
        FixedWindow::new(Quota::per_hour(2)),
    );
    answered(&limiter, &7, 1).await;
    // The replicated usage is kept.
    assert!(!is_allowed(&limiter, &1).await);
}
