use std::error::Error as StdError;
use std::fmt;

use super::Respond;
use super::rejection::Rejection;
use crate::decision::Decision;

/// Any error, as tower's own layers return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Rejects requests with an error: for clients, and for services that are not HTTP.
///
/// The error of the rate limited service is a [`BoxError`]. It holds a [`Rejected`], which `downcast_ref` finds, or the
/// error of the inner service.
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
///     .service(service_fn(async |number: u32| Ok::<_, BoxError>(number + 1)));
///
/// assert_eq!(service.ready().await?.call(1).await?, 2);
/// let error = service.ready().await?.call(1).await.unwrap_err();
/// let rejected = error.downcast_ref::<Rejected>().expect("an error of the rate limiter");
/// assert!(rejected.rejection().is_over_limit());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectWithError;

impl<Request, Response, Error> Respond<Request, Response, Error> for RejectWithError
where
    BoxError: From<Error>,
{
    type Response = Response;
    type Error = BoxError;
    type Context = ();

    #[inline]
    fn on_allowed(&self, _request: &mut Request, _decision: Option<&Decision>) {}

    fn map_response((): (), response: Response) -> Response {
        response
    }

    fn on_rejected(&self, _request: Request, rejection: Rejection) -> Result<Response, BoxError> {
        Err(Box::new(Rejected { rejection }))
    }
}

/// The error of a request that the rate limiter rejected.
#[derive(Clone, Debug)]
pub struct Rejected {
    rejection: Rejection,
}

impl Rejected {
    /// Returns the reason.
    #[must_use]
    pub fn rejection(&self) -> &Rejection {
        &self.rejection
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
