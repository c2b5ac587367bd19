use std::fmt;

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::Error;

/// Whom to trust where Redis is reached over TLS, and how to show who one is. For [`RedisServer::with_tls`](super::RedisServer::with_tls).
///
/// Without it the system's certificates are trusted, and none is shown.
///
/// ```no_run
/// use tower_ratelimit::{RedisServer, RedisTls};
///
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = RedisTls::new()
///     .root_certificates(std::fs::read("ca.pem")?)
///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?);
/// let server = RedisServer::open("rediss://user:password@redis.internal:6380")?.with_tls(&tls)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a server is given it"]
pub struct RedisTls(TlsCertificates);

impl RedisTls {
    /// The system's certificates are trusted, and none is shown.
    pub const fn new() -> Self {
        Self(TlsCertificates { client_tls: None, root_cert: None })
    }

    /// Trusts servers whose certificates are signed by one of these, in PEM, and no others: not those that the system trusts.
    pub fn root_certificates(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.0.root_cert = Some(certificates.into());
        self
    }

    /// Shows this certificate (with those that it is signed by, if need be) and proves with this key that it is one's own,
    /// both in PEM: to servers that want to know (`tls-auth-clients`).
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.0.client_tls = Some(ClientTlsConfig { client_cert: certificate.into(), client_key: key.into() });
        self
    }

    /// Where and how to connect, with these certificates.
    pub(crate) fn applied(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        for certificates in [self.0.root_cert.as_ref(), self.0.client_tls.as_ref().map(|shown| &shown.client_cert)] {
            if certificates.is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
                return Err(Error::config(
                    "there is no certificate in this: it should be PEM, -----BEGIN CERTIFICATE-----",
                ));
            }
        }
        let client = Client::build_with_tls(info, self.0.clone()).map_err(|error| {
            Error::config(
                "these certificates can't be used: the server's address should be rediss://, and certificates and key in PEM",
            )
            .with_source(error)
        })?;
        Ok(client.get_connection_info().clone())
    }
}

impl Default for RedisTls {
    fn default() -> Self {
        Self::new()
    }
}

/// Not the key.
impl fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTls")
            .field("trusts_its_own", &self.0.root_cert.is_some())
            .field("is_shown", &self.0.client_tls.is_some())
            .finish()
    }
}

/// Sees to it that the process has chosen a cryptography for rustls: its configuration panics where it has not, and where the
/// process was built with none or with several.
pub(crate) fn choose_cryptography() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else may choose just now: theirs is as good.
        let _ = ring::default_provider().install_default();
    }
}
