use std::fmt;

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::error::Error;

/// The certificates for TLS connections to Redis: for [`RedisServer::with_tls`](crate::RedisServer::with_tls).
///
/// Without it the client trusts the system's root certificates, and presents no client certificate.
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
#[must_use = "certificates have no effect until they are passed to `RedisServer::with_tls`"]
pub struct RedisTls(TlsCertificates);

impl RedisTls {
    /// Trusts the system's root certificates, and presents no client certificate.
    pub const fn new() -> Self {
        Self(TlsCertificates { client_tls: None, root_cert: None })
    }

    /// Trusts these root certificates (PEM) instead of the system's.
    pub fn root_certificates(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.0.root_cert = Some(certificates.into());
        self
    }

    /// Presents this client certificate to servers that require one (`tls-auth-clients`).
    ///
    /// `certificate` is PEM, with the intermediate certificates if the server needs them; `key` is its private key in
    /// PEM.
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.0.client_tls = Some(ClientTlsConfig { client_cert: certificate.into(), client_key: key.into() });
        self
    }

    /// Adds the certificates to a connection's settings.
    pub(crate) fn apply_to(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        for certificates in [self.0.root_cert.as_ref(), self.0.client_tls.as_ref().map(|client| &client.client_cert)] {
            if certificates.is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
                return Err(Error::config(
                    "invalid TLS settings: no certificate found; pass PEM, which begins with -----BEGIN \
                     CERTIFICATE-----",
                ));
            }
        }
        let client = Client::build_with_tls(info, self.0.clone()).map_err(|error| {
            Error::config(
                "invalid TLS settings: the certificates cannot be used; use a rediss:// address, and pass certificates \
                 and key as PEM",
            )
            .with_source(error)
        })?;
        Ok(client.get_connection_info().clone())
    }
}

impl_default!(RedisTls);

/// Omits the certificates and the key.
impl fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTls")
            .field("has_root_certificates", &self.0.root_cert.is_some())
            .field("has_client_certificate", &self.0.client_tls.is_some())
            .finish()
    }
}

/// Installs a default cryptography provider for rustls if the process has none.
///
/// rustls panics while it builds its configuration if the process has no provider and was built with none or with
/// several.
pub(crate) fn install_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has just installed a provider, which serves as well.
        let _ = ring::default_provider().install_default();
    }
}
