use bytes::Bytes;
use http::Response;

use super::Respond;
use super::body::ResponseBody;
use super::rejection::Rejection;
use crate::decision::Decision;

impl<Request, Response, Error, F, Answer> Respond<Request, Response, Error> for F
where
    F: Fn(Request, Rejection) -> Answer,
    Answer: IntoAnswer<Response>,
{
    type Response = Response;
    type Context = ();

    #[inline]
    fn on_allowed(&self, _request: &mut Request, _decision: Option<&Decision>) {}

    fn map_response((): (), response: Response) -> Response {
        response
    }

    fn on_rejected(&self, request: Request, rejection: Rejection) -> Result<Response, Error> {
        Ok(self(request, rejection).into_answer())
    }
}

/// A return type of closures that answer rejections.
///
/// With the feature `axum` these are a [`StatusCode`](http::StatusCode), and tuples that begin with one, as in axum's
/// handlers. A type without a status, such as a `String`, would be sent with status 200.
#[diagnostic::on_unimplemented(
    message = "a closure that answers rejections must return `{Response}`, not `{Self}`",
    label = "expected `{Response}`",
    note = "in axum return a tuple that begins with a `StatusCode` (feature `axum`), or call `.into_response()` on the \
            value; in other servers build the response"
)]
pub trait IntoAnswer<Response> {
    /// Converts the return value into the service's response.
    fn into_answer(self) -> Response;
}

impl<Answer> IntoAnswer<Answer> for Answer {
    fn into_answer(self) -> Answer {
        self
    }
}

/// The response of a closure of [`Http::render`](super::Http::render) with [`map_body`](super::Http::map_body).
impl<B> IntoAnswer<Response<ResponseBody<B>>> for Response<Bytes> {
    fn into_answer(self) -> Response<ResponseBody<B>> {
        self.map(ResponseBody::from)
    }
}

#[cfg(feature = "axum")]
mod axum_answers {
    use axum::response::{IntoResponse, IntoResponseParts, Response};
    use http::StatusCode;

    use super::IntoAnswer;

    impl IntoAnswer<Response> for StatusCode {
        fn into_answer(self) -> Response {
            self.into_response()
        }
    }

    impl<B: IntoResponse> IntoAnswer<Response> for (StatusCode, B) {
        fn into_answer(self) -> Response {
            self.into_response()
        }
    }

    impl<H: IntoResponseParts, B: IntoResponse> IntoAnswer<Response> for (StatusCode, H, B) {
        fn into_answer(self) -> Response {
            self.into_response()
        }
    }
}
