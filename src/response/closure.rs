use super::admission::Admission;
use super::refusal::Refusal;
use super::seam::Respond;

impl<Request, Response, Error, F> Respond<Request, Response, Error> for F
where
    F: Fn(Request, Refusal) -> Response,
{
    type Response = Response;
    type Error = Error;
    type Mark = ();

    fn admit(&self, _request: &mut Request, _admission: Admission) {}

    fn finish((): (), response: Response) -> Response {
        response
    }

    fn refuse(&self, request: Request, refusal: Refusal) -> Result<Response, Error> {
        Ok(self(request, refusal))
    }
}
