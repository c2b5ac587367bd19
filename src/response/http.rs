use http::{Request, Response};

use super::admission::Admission;
use super::any_body::AnyBody;
use super::fields::{self, LegacyReset};
use super::problem::{Problem, Render};
use super::refusal::Refusal;
use super::seam::Respond;
use super::tell::{HttpMark, Tell};

/// Answers in HTTP. The default of the layer.
///
/// - A refusal is a 429 with `Retry-After` (whole seconds, rounded up, never 0) and a [`Problem`] body, or what
///   [`render`](Self::render) makes of it. What never fits has no `Retry-After`.
/// - Allowed and refused answers carry `RateLimit` and `RateLimit-Policy`
///   (draft-ietf-httpapi-ratelimit-headers-10), with every limit listed. What a handler or another limiter has put
///   there stays.
/// - Requests and responses carry an [`Admission`] in their extensions.
///
/// ```
/// use tower_ratelimit::response::{Http, LegacyReset};
///
/// let like_github = Http::new().legacy_fields(LegacyReset::EpochSeconds);
/// let silent = Http::bare();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Http<R = Problem> {
    tell: Tell,
    render: R,
}

impl Http {
    /// The draft's header fields, extensions, a problem body.
    #[must_use]
    pub const fn new() -> Self {
        Self { tell: Tell { draft: true, extensions: true, ..Tell::NOTHING }, render: Problem }
    }

    /// No header fields but `Retry-After`, and no extensions: what is let through is left as it is, at no allocation.
    #[must_use]
    pub const fn bare() -> Self {
        Self { tell: Tell::NOTHING, render: Problem }
    }
}

impl<R> Http<R> {
    /// Whether to send `RateLimit` and `RateLimit-Policy`.
    #[must_use]
    pub fn draft_fields(mut self, on: bool) -> Self {
        self.tell.draft = on;
        self
    }

    /// Sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit that speaks.
    #[must_use]
    pub fn legacy_fields(mut self, reset: LegacyReset) -> Self {
        self.tell.legacy = Some(reset);
        self
    }

    /// Whether to put an [`Admission`] into the extensions of requests and responses.
    #[must_use]
    pub fn extensions(mut self, on: bool) -> Self {
        self.tell.extensions = on;
        self
    }

    /// Whether to name what it sends in `Access-Control-Expose-Headers`, so that scripts of other origins can read it
    /// (<https://fetch.spec.whatwg.org/#http-access-control-expose-headers>). Off by default: a CORS layer may say it
    /// all. That layer goes outside of this one either way, for refusals to pass through it, and
    /// [`Preflight`](crate::key::Preflight) exempts its preflights.
    #[must_use]
    pub fn expose_fields(mut self, on: bool) -> Self {
        self.tell.exposed = on;
        self
    }

    /// Renders refusals by a closure of your own, `Fn(&Refusal) -> Response<Body>`. The header fields are added to what it
    /// returns.
    ///
    /// ```
    /// use tower_ratelimit::response::{Http, Refusal};
    ///
    /// let responder = Http::new().render(|refusal: &Refusal| {
    ///     let mut response = http::Response::new(format!("Slow down: {refusal}"));
    ///     *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// ```
    #[must_use]
    pub fn render<F>(self, render: F) -> Http<F> {
        Http { tell: self.tell, render }
    }

    /// Answers for services whose response body can't be made from bytes, at the price of a body type around theirs.
    #[must_use]
    pub fn any_body(self) -> AnyBody<Self> {
        AnyBody(self)
    }

    pub(super) fn refusal<B>(&self, refusal: Refusal) -> Response<B>
    where
        R: Render<B>,
    {
        let mut response = self.render.render(&refusal);
        if let Some(retry_after) = refusal.retry_after() {
            fields::add_retry_after(response.headers_mut(), retry_after);
        }
        match refusal {
            Refusal::Limited(decision) => self.tell.tell(&mut response, Admission::Decided(decision)),
            _ => self.tell.expose(&mut response),
        }
        response
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, B, E, R> Respond<Request<A>, Response<B>, E> for Http<R>
where
    R: Render<B>,
{
    type Response = Response<B>;
    type Error = E;
    type Mark = HttpMark;

    fn wants_every_limit(&self) -> bool {
        self.tell.draft
    }

    fn wants_every_refusal(&self) -> bool {
        true
    }

    fn admit(&self, request: &mut Request<A>, admission: Admission) -> HttpMark {
        self.tell.admit(request.extensions_mut(), admission)
    }

    fn finish(mark: HttpMark, response: Response<B>) -> Response<B> {
        mark.finish(response)
    }

    fn refuse(&self, _request: Request<A>, refusal: Refusal) -> Result<Response<B>, E> {
        Ok(self.refusal(refusal))
    }
}
