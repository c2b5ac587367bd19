use std::error::Error as StdError;

use super::Respond;
use super::rejection::Rejection;
use crate::decision::Decision;

/// Any error, as tower's own layers return it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Rejects requests with an error: for clients, and for services that are not HTTP.
///
/// The layer does not change the error type of the service. The type must implement `From<Rejection>`:
///
/// - a [`BoxError`] does. It holds a [`Rejection`], which `downcast_ref` finds, or the error of the inner service.
/// - an error type of your own can, with a variant for [`Rejection`].
/// - for any other error type, such as hyper's and reqwest's, add `.map_err(BoxError::from)` between the layer and the
///   service.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::response::{BoxError, RejectWithError, Rejection};
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
/// let rejection = error.downcast_ref::<Rejection>().expect("an error of the rate limiter");
/// assert!(rejection.is_over_limit());
/// # Ok(())
/// # }
/// ```
///
/// A typed error:
///
/// ```
/// use tower_ratelimit::response::Rejection;
///
/// enum ApiError {
///     Limited(Rejection),
///     Transport(std::io::Error),
/// }
///
/// impl From<Rejection> for ApiError {
///     fn from(rejection: Rejection) -> Self {
///         Self::Limited(rejection)
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectWithError;

/// An error type that can hold a [`Rejection`]: any type that implements `From<Rejection>`.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot hold a rejection of the rate limiter",
    label = "the service's error is `{Self}`",
    note = "add `.map_err(BoxError::from)` between the layer and the service, or implement `From<Rejection>` for an \
            error type of your own"
)]
pub trait FromRejection {
    /// Converts the rejection.
    fn from_rejection(rejection: Rejection) -> Self;
}

impl<E: From<Rejection>> FromRejection for E {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.into()
    }
}

impl<Request, Response, Error> Respond<Request, Response, Error> for RejectWithError
where
    Error: FromRejection,
{
    type Response = Response;
    type Context = ();

    #[inline]
    fn on_allowed(&self, _request: &mut Request, _decision: Option<&Decision>) {}

    fn map_response((): (), response: Response) -> Response {
        response
    }

    fn on_rejected(&self, _request: Request, rejection: Rejection) -> Result<Response, Error> {
        Err(Error::from_rejection(rejection))
    }
}
