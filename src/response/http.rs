use http::{Request, Response};

use super::admission::Admission;
use super::any_body::AnyBody;
use super::fields::{self, LegacyReset};
use super::partition::{Hash, Partition, PartitionBy};
use super::problem::{Problem, Render};
use super::refusal::Refusal;
use super::seam::Respond;
use super::tell::{HttpMark, Tell};
use crate::decision::Decision;

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
pub struct Http<R = Problem, P = ()> {
    tell: Tell,
    render: R,
    partition: P,
}

impl Http {
    /// The draft's header fields, extensions, a problem body.
    #[must_use]
    pub const fn new() -> Self {
        Self { tell: Tell { draft: true, extensions: true, ..Tell::NOTHING }, render: Problem, partition: () }
    }

    /// No header fields but `Retry-After`, and no extensions: what is let through is left as it is, at no allocation.
    #[must_use]
    pub const fn bare() -> Self {
        Self { tell: Tell::NOTHING, render: Problem, partition: () }
    }
}

impl<R, P> Http<R, P> {
    /// Whether to send `RateLimit` and `RateLimit-Policy`.
    #[must_use]
    pub fn draft_fields(mut self, on: bool) -> Self {
        self.tell.draft = on;
        self
    }

    /// Sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit that speaks.
    ///
    /// Clients that know an older draft's `RateLimit` (`limit=10, remaining=..`) take that field for it where both are
    /// sent: for them, turn [`draft_fields`](Self::draft_fields) off.
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

    /// Renders refusals by a closure of your own, `Fn(&Refusal) -> Response<Body>`. The header fields are added to what
    /// it returns.
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
    pub fn render<F>(self, render: F) -> Http<F, P> {
        Http { tell: self.tell, render, partition: self.partition }
    }

    /// Tells the partition key (`pk`) in `RateLimit` and `RateLimit-Policy`: by what the quota is counted, so that a
    /// client that is several knows which of them it was. It is sent as 128 bits of a keyed hash, never in clear: under
    /// a [`Pepper`](crate::key::Pepper) if all servers are to send the same, else under
    /// [`OwnPepper`](crate::key::OwnPepper).
    ///
    /// `key` is the layer's, as a rule, and is extracted once more to answer. All limits are told with the same `pk`.
    ///
    /// ```
    /// use tower_ratelimit::key::{Header, OwnPepper};
    /// use tower_ratelimit::response::Http;
    /// use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer};
    ///
    /// const TENANT: Header = Header::from_static("x-tenant");
    ///
    /// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// let layer = RateLimitLayer::new(TENANT, limiter).responder(Http::new().partition_key(TENANT, OwnPepper));
    /// ```
    #[must_use]
    pub fn partition_key<K, Q>(self, key: K, pepper: Q) -> Http<R, PartitionBy<K, Q>> {
        Http { tell: self.tell, render: self.render, partition: PartitionBy::new(key, pepper) }
    }

    /// Answers for services whose response body can't be made from bytes, at the price of a body type around theirs.
    #[must_use]
    pub fn any_body(self) -> AnyBody<Self> {
        AnyBody(self)
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, B, E, R, P> Respond<Request<A>, Response<B>, E> for Http<R, P>
where
    R: Render<B>,
    P: Partition<Request<A>>,
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
        let partition = self.partition_of(request, admission.decision().is_some());
        self.tell.admit(request.extensions_mut(), admission, partition)
    }

    #[inline]
    fn admit_ref(&self, request: &Request<A>, decision: &Decision) -> Option<HttpMark> {
        self.tell.admit_ref(decision, || self.partition_of(request, true))
    }

    #[inline]
    fn finish(mark: HttpMark, response: Response<B>) -> Response<B> {
        mark.finish(response)
    }

    fn refuse(&self, request: Request<A>, refusal: Refusal) -> Result<Response<B>, E> {
        let mut response = self.render.render(&refusal);
        if let Some(retry_after) = refusal.retry_after() {
            fields::add_retry_after(response.headers_mut(), retry_after);
        }
        match refusal {
            Refusal::Limited(decision) => {
                let partition = self.partition_of(&request, true);
                self.tell.refuse(&mut response, decision, partition);
            }
            _ => self.tell.expose(&mut response),
        }
        Ok(response)
    }
}

impl<R, P> Http<R, P> {
    fn partition_of<A>(&self, request: &Request<A>, is_limited: bool) -> Option<Hash>
    where
        P: Partition<Request<A>>,
    {
        if self.tell.draft && is_limited { self.partition.of(request) } else { None }
    }
}
