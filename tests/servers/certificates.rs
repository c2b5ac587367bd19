//! Certificates for servers on the loopback interface and for a client.
#![allow(dead_code, reason = "each binary uses a part")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tower_ratelimit::RedisTls;

use crate::process::{Folder, free_port};
use crate::server::Server;

/// An authority, a certificate for the nodes and one for a client, in PEM.
pub(crate) struct Certificates {
    /// The files of the servers.
    pub(crate) folder: Folder,
    authority: String,
    pub(crate) client: [String; 2],
}

impl Certificates {
    pub(crate) fn issue() -> Self {
        let folder = Folder::new("certificates");
        let key = || KeyPair::generate().expect("a key");
        // OpenSSL takes a certificate for self-signed if its subject equals its issuer.
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
            std::fs::write(folder.path().join(file), text).expect("a file");
        }
        Self { folder, authority: authority.pem(), client }
    }

    pub(crate) fn trusted(&self) -> RedisTls {
        RedisTls::new().root_certificates(self.authority.as_str())
    }

    /// Starts a server with a TLS port and a plain port for the tests.
    pub(crate) fn server(&self, of_cluster: bool, arguments: &[&str]) -> Server {
        let port = free_port().to_string();
        let [ca, certificate, key] = ["ca.pem", "node.pem", "node.key"].map(|name| self.folder.file(name));
        let tls =
            ["--tls-port", &port, "--tls-ca-cert-file", &ca, "--tls-cert-file", &certificate, "--tls-key-file", &key];
        let all = [&tls[..], arguments].concat();
        if of_cluster { Server::node_with(&[&all[..], &["--tls-cluster", "yes"]].concat()) } else { Server::with(&all) }
    }
}
