use super::Respond;
use super::info::RateLimitInfo;
use super::rejection::Rejection;
use crate::decision::Decision;

impl<Request, Response, Error, F> Respond<Request, Response, Error> for F
where
    F: Fn(Request, Rejection) -> Response,
{
    type Response = Response;
    type Error = Error;
    type Context = ();

    fn admit(&self, _request: &mut Request, _admission: RateLimitInfo) {}

    #[inline]
    fn admit_ref(&self, _request: &Request, _decision: &Decision) -> Option<()> {
        Some(())
    }

    fn finish((): (), response: Response) -> Response {
        response
    }

    fn refuse(&self, request: Request, refusal: Rejection) -> Result<Response, Error> {
        Ok(self(request, refusal))
    }
}
