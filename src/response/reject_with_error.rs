use std::error::Error as StdError;
use std::fmt;

use super::Respond;
use super::info::RateLimitInfo;
use super::rejection::Rejection;
use crate::decision::Decision;

/// Any error, as tower's own layers return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Refuses with an error: for clients, and for services that are not HTTP.
///
/// The limited service's error is a [`BoxError`]: a [`Rejected`], which `downcast_ref` finds, or the service's own.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::response::{RejectWithError, BoxError, Rejected};
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
/// let rejected = error.downcast_ref::<Rejected>().expect("the limiter's error");
/// assert!(rejected.refusal().is_over_limit());
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

    fn admit(&self, _request: &mut Request, _admission: RateLimitInfo) {}

    #[inline]
    fn admit_ref(&self, _request: &Request, _decision: &Decision) -> Option<()> {
        Some(())
    }

    fn finish((): (), response: Response) -> Response {
        response
    }

    fn refuse(&self, _request: Request, refusal: Rejection) -> Result<Response, BoxError> {
        Err(Box::new(Rejected { refusal }))
    }
}

/// The error of a request that a limiter did not let through.
#[derive(Clone, Debug)]
pub struct Rejected {
    refusal: Rejection,
}

impl Rejected {
    /// Why it was not let through.
    #[must_use]
    pub fn refusal(&self) -> &Rejection {
        &self.refusal
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl StdError for Rejected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.refusal {
            Rejection::Unavailable(error) => Some(error),
            _ => None,
        }
    }
}
