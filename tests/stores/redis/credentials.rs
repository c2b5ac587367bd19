//! Credentials from a provider, on servers whose passwords change while a limiter uses them.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use tower_ratelimit::{AcquireOptions, FixedWindow, Quota, Redis, RedisCredentials, RedisServer};

use crate::cluster_server::Cluster;
use crate::helpers::{AMPLE, acquire, is_allowed, redis_limiter};
use crate::idle_connections::kill_limiters;
use crate::process::wait_until;
use crate::sentinel_server::SentinelDeployment;
use crate::server::Server;

/// The user `app` of a server, and the password that the provider returns.
#[derive(Clone)]
pub(crate) struct Vault {
    password: Arc<Mutex<&'static str>>,
    calls: Arc<AtomicUsize>,
    /// Whether the provider names the user; otherwise the address does.
    is_named: bool,
}

impl Vault {
    pub(crate) fn new(password: &'static str) -> Self {
        Self { password: Arc::new(Mutex::new(password)), calls: Arc::default(), is_named: true }
    }

    fn set(&self, password: &'static str) {
        *self.password.lock().expect("no panic") = password;
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// A server whose credentials are those of the vault.
    fn opens(&self, server: &Server, lifetime: Option<Duration>) -> RedisServer {
        self.authenticates(&server.open(), lifetime)
    }

    /// Changes the password twice. Each time the limiter renews its credentials and decides.
    pub(crate) async fn rotate(&self, server: &Server, limiter: &Redis<u64>) {
        let first = acquire(limiter, &1, AcquireOptions::default()).await;
        assert!(first.is_ok(), "the first decision opens the connection: {first:?}");
        for [old, password] in [["password-0", "password-1"], ["password-1", "password-2"]] {
            server.command(&["ACL", "SETUSER", "app", &format!(">{password}")]);
            self.set(password);
            let before = self.calls();
            // The first of them may follow an answer with the old password.
            wait_until("two renewals", || self.calls() >= before + 2);
            server.command(&["ACL", "SETUSER", "app", &format!("<{old}")]);
            for _ in 0..20 {
                let outcome = acquire(limiter, &1, AcquireOptions::default()).await;
                assert!(outcome.expect("a decision while credentials rotate").decision.is_allowed(), "{password}");
            }
        }
    }

    pub(crate) fn authenticates(&self, server: &RedisServer, lifetime: Option<Duration>) -> RedisServer {
        let vault = self.clone();
        let provider = move || {
            vault.calls.fetch_add(1, Ordering::Relaxed);
            let password = *vault.password.lock().expect("no panic");
            async move {
                if password.is_empty() {
                    return Err("the vault is sealed".into());
                }
                let credentials = if vault.is_named {
                    RedisCredentials::new("app", password)
                } else {
                    RedisCredentials::password(password)
                };
                Ok(lifetime.map_or(credentials.clone(), |lifetime| credentials.expires_in(lifetime)))
            }
        };
        server.with_credentials(provider).expect("a server by its address")
    }
}

pub(crate) fn set_password(server: &Server, password: &str) {
    let password = format!(">{password}");
    let reply = server.command(&["ACL", "SETUSER", "app", "on", "resetpass", &password, "~*", "+@all"]);
    assert!(reply.starts_with("+OK\r\n"), "{reply}");
}

fn limiter(server: RedisServer) -> Redis<u64> {
    redis_limiter(server, "api", FixedWindow::new(AMPLE))
}

/// The number of connections of the user `app`.
fn connections(server: &Server) -> usize {
    server.command(&["CLIENT", "LIST"]).matches(" user=app ").count()
}

#[tokio::test]
async fn provider_is_asked_again_for_each_connection() {
    let (server, vault) = (Server::start(), Vault::new("first"));
    set_password(&server, "first");
    let limiter = limiter(vault.opens(&server, None));
    assert!(is_allowed(&limiter, &1).await);
    assert_eq!((vault.calls(), connections(&server)), (1, 1));

    // The open connection stays authenticated.
    set_password(&server, "second");
    vault.set("second");
    assert!(is_allowed(&limiter, &1).await);
    assert_eq!(vault.calls(), 1);

    kill_limiters(&server);
    assert!(is_allowed(&limiter, &1).await, "the limiter notices the closed connection before the call");
    assert_eq!((vault.calls(), connections(&server)), (2, 1));
}

#[tokio::test]
async fn wrong_password_of_the_provider_is_an_error_until_it_is_right() {
    let (server, vault) = (Server::start(), Vault::new("stale"));
    set_password(&server, "fresh");
    let limiter = limiter(vault.opens(&server, None));
    let error = limiter.health_check().await.expect_err("a wrong password");
    assert!(error.is_unavailable() && error.to_string().contains("the credentials provider"), "{error}");

    vault.set("");
    let error = limiter.health_check().await.expect_err("a failing provider");
    assert!(error.is_unavailable() && error.to_string().contains("the credentials provider failed"), "{error}");
    assert!(error.source().expect("the cause").to_string().contains("the vault is sealed"), "{error:?}");

    vault.set("fresh");
    limiter.health_check().await.expect("the right password");
    assert!(is_allowed(&limiter, &1).await);
}

/// The password changes several times while requests are in flight. No decision fails, and the connection stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiring_credentials_are_renewed_on_the_open_connection() {
    for is_named in [true, false] {
        let (server, vault) = (Server::start(), Vault { is_named, ..Vault::new("password-0") });
        set_password(&server, "password-0");
        let address = server.address().replace("redis://", "redis://app@");
        let open = if is_named { server.open() } else { RedisServer::open(&address).expect("an address") };
        let limiter = limiter(vault.authenticates(&open, Some(Duration::from_millis(400))));
        assert!(is_allowed(&limiter, &1).await);
        vault.rotate(&server, &limiter).await;
        assert_eq!(connections(&server), 1);
        let log = server.command(&["ACL", "LOG"]);
        assert!(log.starts_with("*0\r\n"), "no authentication failed: {log}");
        // The first authentication is that of the connection; each renewal is one more on it.
        let stats = server.command(&["INFO", "commandstats"]);
        let auth = stats.lines().find(|line| line.starts_with("cmdstat_auth:calls=")).expect("authentications");
        assert!(auth.contains("failed_calls=0"), "{auth}");
    }
}

/// The renewal ends with the limiter, and so does its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_ends_with_the_connection() {
    let (server, vault) = (Server::start(), Vault::new("password"));
    set_password(&server, "password");
    let limiter = limiter(vault.opens(&server, Some(Duration::from_millis(100))));
    assert!(is_allowed(&limiter, &1).await);
    wait_until("a renewal", || vault.calls() >= 2);
    drop(limiter);
    wait_until("the end of the connection", || connections(&server) == 0);
}

#[tokio::test]
async fn pool_with_credentials_is_an_error() {
    let server = Server::start();
    let manager = RedisConnectionManager::new(server.address()).expect("an address");
    let pool = RedisServer::from(Pool::builder().build_unchecked(manager));
    let error = pool.with_credentials(|| async { Ok(RedisCredentials::password("x")) }).expect_err("a pool");
    assert!(error.is_config() && error.to_string().contains("pool"), "{error}");
}

/// The default user has a password and no name.
#[tokio::test]
async fn password_of_the_default_user() {
    let server = Server::with(&["--requirepass", "default-password"]);
    let provider = || async { Ok(RedisCredentials::password("default-password")) };
    let limiter = redis_limiter::<u64>(
        server.open().with_credentials(provider).expect("an address"),
        "api",
        FixedWindow::new(Quota::per_hour(1)),
    );
    assert_eq!([is_allowed(&limiter, &1).await, is_allowed(&limiter, &1).await], [true, false]);
    assert!(!format!("{:?}", RedisCredentials::new("app", "secret-word")).contains("secret-word"));
}

/// The provider authenticates the connections to all nodes. A new password applies to the next connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_authenticates_all_nodes_of_a_cluster() {
    let (cluster, vault) = (Cluster::start(), Vault::new("first"));
    for node in &cluster.nodes {
        set_password(node, "first");
        // Without the provider's user nothing can be decided.
        assert!(node.command(&["ACL", "SETUSER", "default", "-@scripting"]).starts_with("+OK"));
    }
    let limiter = limiter(vault.authenticates(&cluster.open(), None));
    for key in 0..60 {
        assert!(is_allowed(&limiter, &key).await);
    }
    assert!(cluster.nodes.iter().all(|node| connections(node) > 0));

    vault.set("second");
    for node in &cluster.nodes {
        set_password(node, "second");
        kill_limiters(node);
    }
    for key in 0..60 {
        assert!(is_allowed(&limiter, &key).await, "{key}");
    }
}

/// The provider authenticates the connection to the master; the Sentinels have the password of their addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_authenticates_the_master_that_sentinel_names() {
    let (deployment, vault) = (SentinelDeployment::start(), Vault::new("first"));
    let server = vault.authenticates(&deployment.open(), None);
    let before = limiter(server.clone()).health_check().await.expect_err("the master has no such user");
    assert!(before.is_unavailable(), "{before}");
    for node in [&deployment.master, &deployment.replica] {
        set_password(node, "first");
    }
    let limiter = limiter(server);
    assert!(is_allowed(&limiter, &1).await);
}
