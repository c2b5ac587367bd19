use std::error::Error as StdError;
use std::fmt;

use super::Respond;
use super::rejection::Rejection;
use crate::decision::Decision;

/// Any error, as tower's own layers return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Rejects requests with an error: for clients, and for services that are not HTTP.
///
/// The layer does not change the error type of the service. The type must implement `From<Rejected>`:
///
/// - a [`BoxError`] does. It holds a [`Rejected`], which `downcast_ref` finds, or the error of the inner service.
/// - an error type of your own can, with a variant for [`Rejected`].
/// - for any other error type, such as hyper's and reqwest's, add `.map_err(BoxError::from)` between the layer and the
///   service.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
/// use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let limiter = Memory::new(FixedWindow::new(Quota::per_minute(1)));
/// let mut service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(Global, limiter).responder(RejectWithError))
///     .map_err(BoxError::from)
///     .service(service_fn(async |text: &'static str| text.parse::<u32>()));
///
/// assert_eq!(service.ready().await?.call("2").await?, 2);
/// let error = service.ready().await?.call("2").await.unwrap_err();
/// let rejected = error.downcast_ref::<Rejected>().expect("an error of the rate limiter");
/// assert!(rejected.rejection().is_over_limit());
/// # Ok(())
/// # }
/// ```
///
/// A typed error:
///
/// ```
/// use tower_ratelimit::response::Rejected;
///
/// enum ApiError {
///     Limited(Rejected),
///     Transport(std::io::Error),
/// }
///
/// impl From<Rejected> for ApiError {
///     fn from(rejected: Rejected) -> Self {
///         Self::Limited(rejected)
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectWithError;

/// An error type that can hold a [`Rejected`]: any type that implements `From<Rejected>`.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot hold a rejection of the rate limiter",
    label = "the service's error is `{Self}`",
    note = "add `.map_err(BoxError::from)` between the layer and the service, or implement `From<Rejected>` for an \
            error type of your own"
)]
pub trait FromRejected {
    /// Converts the rejection.
    fn from_rejected(rejected: Rejected) -> Self;
}

impl<E: From<Rejected>> FromRejected for E {
    fn from_rejected(rejected: Rejected) -> Self {
        rejected.into()
    }
}

impl<Request, Response, Error> Respond<Request, Response, Error> for RejectWithError
where
    Error: FromRejected,
{
    type Response = Response;
    type Context = ();

    #[inline]
    fn on_allowed(&self, _request: &mut Request, _decision: Option<&Decision>) {}

    fn map_response((): (), response: Response) -> Response {
        response
    }

    fn on_rejected(&self, _request: Request, rejection: Rejection) -> Result<Response, Error> {
        Err(Error::from_rejected(Rejected { rejection }))
    }
}

/// The error of a request that the rate limiter rejected.
#[derive(Clone, Debug)]
pub struct Rejected {
    rejection: Rejection,
}

impl Rejected {
    /// Creates the error of a rejection, for custom responders and for callers of limiters.
    pub const fn new(rejection: Rejection) -> Self {
        Self { rejection }
    }

    /// Returns the reason.
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
    }

    /// Returns the reason by value.
    pub fn into_rejection(self) -> Rejection {
        self.rejection
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rejection.fmt(f)
    }
}

impl StdError for Rejected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.rejection {
            Rejection::Unavailable(error) => Some(error),
            _ => None,
        }
    }
}
