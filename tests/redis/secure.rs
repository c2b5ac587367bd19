//! Redis over TLS, with certificates of one's own, and with passwords: one server, a cluster, Sentinel.

use std::cell::RefCell;
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, Error, FixedWindow, Quota, RedisServer, RedisTls};

use crate::cluster_server::{Nodes, until};
use crate::helpers::{PATIENCE, acquire, is_allowed, patient};
use crate::idle_connections::kill_all;
use crate::sentinel_server::Watched;
use crate::server::{Server, free_port};

/// An authority, a certificate for this machine's nodes, and one for a client; in PEM.
struct Certificates {
    directory: PathBuf,
    authority: String,
    client: [String; 2],
}

impl Certificates {
    fn issue() -> Self {
        static ISSUED: AtomicU32 = AtomicU32::new(0);
        let number = ISSUED.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("tower-ratelimit-certificates-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for them");
        let key = || KeyPair::generate().expect("a key");
        // Redis takes a certificate whose issuer has its own name for one that has signed itself.
        let named = |name: &str, addresses: &[String]| {
            let mut params = CertificateParams::new(addresses).expect("addresses");
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut params = named("authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, key()).expect("an authority");
        let [node, client] = ["node", "client"].map(|name| {
            let (key, params) = (key(), named(name, &["127.0.0.1".to_owned()]));
            [params.signed_by(&key, &authority).expect("a certificate").pem(), key.serialize_pem()]
        });
        for (file, text) in [("ca.pem", &authority.pem()), ("node.pem", &node[0]), ("node.key", &node[1])] {
            std::fs::write(directory.join(file), text).expect("a file");
        }
        Self { directory, authority: authority.pem(), client }
    }

    fn trusted(&self) -> RedisTls {
        RedisTls::new().root_certificates(self.authority.as_str())
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("text").to_owned()
    }

    /// A server that speaks TLS beside what these tests ask it by themselves.
    fn server(&self, of_cluster: bool, arguments: &[&str]) -> Server {
        let port = free_port().to_string();
        let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| self.file(name));
        let tls =
            ["--tls-port", &port, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate, "--tls-key-file", &key];
        let all = [&tls[..], arguments].concat();
        if of_cluster { Server::node_with(&[&all[..], &["--tls-cluster", "yes"]].concat()) } else { Server::with(&all) }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Allows two of three on each of these keys.
async fn works(server: RedisServer, keys: u64) {
    let limiter = patient::<u64>(server, "api", FixedWindow::new(Quota::per_hour(2)));
    limiter.health_check().await.unwrap_or_else(|error| panic!("{error:?}"));
    for key in 0..keys {
        let allowed =
            [is_allowed(&limiter, &key).await, is_allowed(&limiter, &key).await, is_allowed(&limiter, &key).await];
        assert_eq!(allowed, [true, true, false], "key {key}");
    }
}

/// What is said, and why.
async fn fails(server: RedisServer) -> String {
    let limiter = patient::<u64>(server, "api", FixedWindow::new(Quota::per_hour(2)));
    let error = limiter.health_check().await.expect_err("it can't be reached");
    assert!(error.is_unavailable(), "{error:?}");
    format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default())
}

fn by_tls(server: &Server, credentials: &str) -> RedisServer {
    let port = server.tls_port.expect("it speaks TLS");
    RedisServer::open(&format!("rediss://{credentials}127.0.0.1:{port}")).expect("an address")
}

#[tokio::test]
async fn idle_connection_closed_over_tls() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "no"]);
    let by_tls = by_tls(&server, "").with_tls(&certificates.trusted()).expect("certificates");
    let limiter = patient::<u64>(by_tls, "api", FixedWindow::new(Quota::per_hour(11)));
    for round in 0..=10 {
        assert!(is_allowed(&limiter, &1).await, "round {round}");
        kill_all(&server);
    }
    assert!(!is_allowed(&limiter, &1).await, "each was charged once");
}

#[tokio::test]
async fn a_server_is_reached_over_tls_by_those_who_trust_it() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "no"]);
    works(by_tls(&server, "").with_tls(&certificates.trusted()).expect("certificates"), 3).await;
    // The system trusts nobody who has signed it, nor does who trusts another authority.
    let unknown = fails(by_tls(&server, "")).await;
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    let other = by_tls(&server, "").with_tls(&Certificates::issue().trusted()).expect("certificates");
    assert!(fails(other).await.contains("certificate"));
    // It is for the address, not for a name.
    let port = server.tls_port.expect("it speaks TLS");
    let named = RedisServer::open(&format!("rediss://localhost:{port}")).expect("an address");
    let named = fails(named.with_tls(&certificates.trusted()).expect("certificates")).await;
    assert!(named.contains("not valid for name"), "{named}");
    fails(RedisServer::open(&format!("redis://127.0.0.1:{port}")).expect("an address")).await;
}

#[tokio::test]
async fn a_server_that_wants_to_know_clients_is_shown_a_certificate() {
    let certificates = Certificates::issue();
    let server = certificates.server(false, &["--tls-auth-clients", "yes", "--requirepass", "secret"]);
    let [certificate, key] = &certificates.client;
    let known = certificates.trusted().client_certificate(certificate.as_str(), key.as_str());
    works(by_tls(&server, ":secret@").with_tls(&known).expect("certificates"), 3).await;
    fails(by_tls(&server, ":secret@").with_tls(&certificates.trusted()).expect("certificates")).await;
    let wrong = fails(by_tls(&server, ":wrong@").with_tls(&known).expect("certificates")).await;
    assert!(wrong.contains("refused the user's name or password"), "{wrong}");
    assert!(!format!("{known:?}").contains("PRIVATE"), "{known:?}");
}

#[tokio::test]
async fn what_can_not_be_certificates_is_an_error() {
    let certificates = Certificates::issue();
    let open = |address| RedisServer::open(address).expect("an address");
    let is_config = |result: Result<RedisServer, Error>| assert!(result.expect_err("it can't be").is_config());
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
async fn a_cluster_is_reached_over_tls_and_with_a_password() {
    let certificates = Certificates::issue();
    let arguments = ["--tls-auth-clients", "no", "--requirepass", "secret", "--masterauth", "secret"];
    let cluster = Nodes::masters(3, |_| certificates.server(true, &arguments));
    // One node tells of the others, and their ports for TLS.
    let open = |credentials: &str| {
        let port = cluster.nodes[1].tls_port.expect("it speaks TLS");
        RedisServer::cluster([format!("rediss://{credentials}127.0.0.1:{port}")]).expect("an address")
    };
    works(open(":secret@").with_tls(&certificates.trusted()).expect("certificates"), 60).await;
    assert!(cluster.nodes.iter().all(|node| node.keys().len() > 5));
    assert!(fails(open(":secret@")).await.contains("UnknownIssuer"));
    for wrong in [":wrong@", ""] {
        let refused = fails(open(wrong).with_tls(&certificates.trusted()).expect("certificates")).await;
        assert!(refused.contains("password"), "{refused}");
    }
}

/// What `docs/redis.md` says that a user needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clusters_user_needs_only_what_is_documented() {
    let cluster = Nodes::start();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">secret", "~ratelimit:*"];
    user.extend(["+eval", "+evalsha", "+script|load", "+time", "+get", "+mget", "+exists", "+set", "+psetex", "+del"]);
    user.extend(["+getrange", "+setrange", "+pexpire", "+cluster|slots", "+asking"]);
    for node in &cluster.nodes {
        assert!(node.command(&user).starts_with("+OK"));
        // Nobody gets in without a name.
        assert!(node.command(&["ACL", "SETUSER", "default", "-@scripting"]).starts_with("+OK"));
    }
    let addresses = |user: &str| {
        let nodes = cluster.nodes.iter();
        nodes.map(|node| format!("redis://{user}127.0.0.1:{}", node.port)).collect::<Vec<_>>()
    };
    works(RedisServer::cluster(addresses("app:secret@")).expect("addresses"), 60).await;
    assert!(fails(RedisServer::cluster(addresses("")).expect("addresses")).await.contains("grant EVAL, EVALSHA"));
    let wrong = fails(RedisServer::cluster(addresses("app:wrong@")).expect("addresses")).await;
    assert!(wrong.contains("password"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_master_have_passwords_of_their_own() {
    let passwords = ["--requirepass", "of-the-master", "--masterauth", "of-the-master"];
    let watched = Watched::with(
        |arguments| Server::with(&[arguments, &passwords].concat()),
        || {
            let own = "requirepass of-sentinels\nsentinel sentinel-pass of-sentinels\n";
            format!("sentinel auth-pass mymaster of-the-master\n{own}")
        },
        Some("of-sentinels"),
    );
    let addresses = |password: &str| {
        let sentinels = watched.addresses().into_iter();
        sentinels.map(|address| address.replace("redis://", &format!("redis://:{password}@"))).collect::<Vec<_>>()
    };
    let open = |sentinels: &str, master: &str| {
        let settings = format!("redis://:{master}@anywhere");
        RedisServer::sentinel_with(addresses(sentinels), "mymaster", &settings).expect("addresses")
    };
    works(open("of-sentinels", "of-the-master"), 3).await;
    assert!(fails(open("of-sentinels", "wrong")).await.contains("password"));
    assert!(fails(open("wrong", "of-the-master")).await.contains("password"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_master_are_reached_over_tls() {
    let certificates = Certificates::issue();
    let ports = RefCell::new(Vec::new());
    let mut watched = Watched::with(
        |arguments| {
            let tls = ["--tls-replication", "yes", "--tls-auth-clients", "no"];
            certificates.server(false, &[arguments, &tls].concat())
        },
        || {
            let port = free_port();
            ports.borrow_mut().push(port);
            let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| certificates.file(name));
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
    works(open().with_tls(&certificates.trusted()).expect("certificates"), 3).await;
    assert!(fails(open()).await.contains("UnknownIssuer"));
    // So is the one that takes over.
    watched.master.kill();
    until("the replica has taken over", || watched.replica.command(&["ROLE"]).contains("master"));
    let limiter = patient::<u64>(
        open().with_tls(&certificates.trusted()).expect("certificates"),
        "api",
        FixedWindow::new(Quota::per_hour(2)),
    );
    let patience = Instant::now() + PATIENCE;
    while acquire(&limiter, &7, AcquireOptions::default()).await.is_err() {
        assert!(Instant::now() < patience, "service does not resume");
        sleep(Duration::from_millis(10)).await;
    }
    // What was counted is counted still.
    assert!(!is_allowed(&limiter, &1).await);
}
