use super::Respond;
use super::rejection::Rejection;
use crate::decision::Decision;

impl<Request, Response, Error, F> Respond<Request, Response, Error> for F
where
    F: Fn(Request, Rejection) -> Response,
{
    type Response = Response;
    type Error = Error;
    type Context = ();

    #[inline]
    fn on_allowed(&self, _request: &mut Request, _decision: Option<&Decision>) {}

    fn map_response((): (), response: Response) -> Response {
        response
    }

    fn on_rejected(&self, request: Request, rejection: Rejection) -> Result<Response, Error> {
        Ok(self(request, rejection))
    }
}
