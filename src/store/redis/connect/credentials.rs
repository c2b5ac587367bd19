use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, ErrorKind, RedisError, Value};

use crate::store::inner::BoxFuture;

/// A user and a password, or a token, from a provider: for
/// [`RedisServer::with_credentials`](crate::RedisServer::with_credentials).
#[derive(Clone)]
#[must_use = "credentials have no effect until a provider returns them"]
pub struct RedisCredentials {
    user: Option<String>,
    password: String,
    lifetime: Option<Duration>,
}

impl RedisCredentials {
    /// Creates the credentials of a user of Redis's access control list.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into(), lifetime: None }
    }

    /// Creates credentials without a user: of the user in the server's address, otherwise of Redis's default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), lifetime: None }
    }

    /// Sets the time for which the credentials remain valid, as for tokens.
    ///
    /// After three quarters of this time the limiter asks the provider again, and authenticates the open connection
    /// with the new credentials.
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    fn apply_to(&self, info: ConnectionInfo) -> ConnectionInfo {
        let mut settings = info.redis_settings().clone().set_password(&self.password);
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        info.set_redis_settings(settings)
    }
}

// Omits the password.
impl_debug!(RedisCredentials { user, lifetime });

/// The error of a provider: any error.
pub(crate) type ProviderError = Box<dyn std::error::Error + Send + Sync>;

/// The user's provider of credentials.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(
    Arc<dyn Fn() -> BoxFuture<Result<RedisCredentials, ProviderError>> + Send + Sync>,
);

/// The error text of a provider, by which `failure` recognises it.
pub(super) const PROVIDER_FAILED: &str = "the credentials provider failed";

impl CredentialsProvider {
    pub(crate) fn new<F, Fut>(provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<RedisCredentials, ProviderError>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(provider())))
    }

    async fn fetch(&self) -> Result<RedisCredentials, RedisError> {
        (self.0)().await.map_err(|error| (ErrorKind::InvalidClientConfig, PROVIDER_FAILED, error.to_string()).into())
    }

    /// Returns the settings with the present credentials, and for how long these remain valid.
    pub(super) async fn authenticate(
        &self,
        info: ConnectionInfo,
    ) -> Result<(ConnectionInfo, Option<Duration>), RedisError> {
        let credentials = self.fetch().await?;
        Ok((credentials.apply_to(info), credentials.lifetime))
    }

    /// Authenticates the connection again before the credentials expire, until they do not. `user` is that of credentials
    /// without one.
    ///
    /// A failure is repeated after a sixteenth of the lifetime. When the old credentials expire, the server closes the
    /// connection or rejects its commands, and the next connection reports the failure.
    pub(super) async fn keep_authenticated(
        self,
        mut connection: MultiplexedConnection,
        user: Option<String>,
        lifetime: Duration,
    ) {
        let mut wait = lifetime / 4 * 3;
        let mut retry = retry_after(lifetime);
        loop {
            tokio::time::sleep(wait).await;
            wait = match self.authenticate_again(&mut connection, user.as_deref()).await {
                Ok(Some(lifetime)) => {
                    retry = retry_after(lifetime);
                    (lifetime / 4 * 3).max(MIN_WAIT)
                }
                Ok(None) => return,
                Err(_) => retry,
            };
        }
    }

    async fn authenticate_again(
        &self,
        connection: &mut MultiplexedConnection,
        user: Option<&str>,
    ) -> Result<Option<Duration>, RedisError> {
        let credentials = self.fetch().await?;
        let mut command = redis::cmd("AUTH");
        if let Some(user) = credentials.user.as_deref().or(user) {
            command.arg(user);
        }
        command.arg(&credentials.password);
        connection.send_packed_command(&command).await.and_then(Value::extract_error)?;
        Ok(credentials.lifetime)
    }
}

/// A short lifetime, such as the rest of a cached token's, causes no busy loop.
const MIN_WAIT: Duration = Duration::from_millis(50);

/// The wait after a failed authentication.
fn retry_after(lifetime: Duration) -> Duration {
    (lifetime / 16).max(MIN_WAIT)
}
