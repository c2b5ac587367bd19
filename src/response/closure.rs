use super::admission::Admission;
use super::refusal::Refusal;
use super::seam::Respond;
use crate::decision::Decision;

impl<Request, Response, Error, F> Respond<Request, Response, Error> for F
where
    F: Fn(Request, Refusal) -> Response,
{
    type Response = Response;
    type Error = Error;
    type Mark = ();

    fn admit(&self, _request: &mut Request, _admission: Admission) {}

    #[inline]
    fn admit_ref(&self, _request: &Request, _decision: &Decision) -> Option<()> {
        Some(())
    }

    fn finish((): (), response: Response) -> Response {
        response
    }

    fn refuse(&self, request: Request, refusal: Refusal) -> Result<Response, Error> {
        Ok(self(request, refusal))
    }
}
