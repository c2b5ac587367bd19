//! The response headers: `rate_limit` holds the current draft's, `legacy` all others.

pub(super) mod legacy;
mod rate_limit;

pub use self::legacy::ResetFormat;
use std::time::Duration;

use http::{Extensions, Response};

use self::legacy::LegacyHeaders;
use self::rate_limit::RateLimitHeaders;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;
use crate::response::info::RateLimitInfo;
use crate::response::rejection::Rejection;

/// The header fields that a responder adds to responses, and the extensions that it inserts for other code.
///
/// For [`Http::headers`](super::Http::headers) and `Grpc::headers`.
///
/// ```
/// use tower_ratelimit::Http;
/// use tower_ratelimit::response::{Headers, ResetFormat};
///
/// let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds).request_extension(true));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a responder takes the headers"]
pub struct Headers {
    rate_limit: bool,
    legacy: Option<ResetFormat>,
    request_extension: bool,
    response_extension: bool,
    cors_expose: bool,
    skip_shared: bool,
    /// In percent of the wait.
    retry_jitter: u8,
}

impl Headers {
    /// [`RateLimit` and `RateLimit-Policy`](Self::rate_limit), and nothing else: the headers of
    /// [`Http::new`](super::Http::new).
    pub const fn new() -> Self {
        Self { rate_limit: true, ..Self::none() }
    }

    /// Nothing: the headers of [`Http::without_headers`](super::Http::without_headers) and of `Grpc::new`.
    pub const fn none() -> Self {
        Self {
            rate_limit: false,
            legacy: None,
            request_extension: false,
            response_extension: false,
            cors_expose: false,
            skip_shared: false,
            retry_jitter: 0,
        }
    }

    /// Sets whether responses carry `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11:
    /// `"default";r=9;t=1`.
    ///
    /// - `r` is what remains, and `t` the time in seconds within which the client must not use more. After `t` more is
    ///   available, so the value is also right for clients of -10. `Retry-After` is never before the end of `t` of
    ///   the limit that denies, and takes precedence. A time below one second is left out: rounded up, it would stop a
    ///   client for too long.
    /// - `q` and `w` are the limit and its window in whole seconds. `w` is left out if the rounded window would change
    ///   the rate by more than 1 %.
    ///
    /// A later version of this crate may send a later draft.
    pub const fn rate_limit(mut self, on: bool) -> Self {
        self.rate_limit = on;
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the most restrictive limit.
    ///
    /// Clients of an older draft (`RateLimit: limit=10, remaining=..`) misread the current `RateLimit` header. For
    /// these clients, begin with [`none`](Self::none).
    pub const fn legacy(mut self, reset: ResetFormat) -> Self {
        self.legacy = Some(reset);
        self
    }

    /// Sets whether requests carry a [`RateLimitInfo`](crate::RateLimitInfo) in their extensions, for handlers.
    ///
    /// Off by default, because no part of the crate reads the value. With it a request takes 11 % longer, with one
    /// allocation more; 31 % and three allocations if the request has no extensions yet.
    pub const fn request_extension(mut self, on: bool) -> Self {
        self.request_extension = on;
        self
    }

    /// Sets whether responses carry a [`RateLimitInfo`](crate::RateLimitInfo) in their extensions, for outer layers
    /// such as an access log.
    ///
    /// Off by default. A copy of the decision takes two allocations, and the map of the extensions more.
    pub const fn response_extension(mut self, on: bool) -> Self {
        self.response_extension = on;
        self
    }

    /// Sets whether `Access-Control-Expose-Headers` lists the headers, so that scripts of other origins can read them:
    /// also the status of a rejection, which a gRPC-Web client reads as headers.
    ///
    /// Off by default, because a CORS layer may already list them
    /// (<https://fetch.spec.whatwg.org/#http-access-control-expose-headers>). Place the CORS layer outside of this
    /// layer in either case, so that rejections pass through the CORS layer. [`Preflight`](crate::key::Preflight)
    /// exempts CORS preflight requests.
    ///
    /// tower-http's `CorsLayer` with `expose_headers` *replaces* this list by its own. List the names there instead:
    /// `ratelimit`, `ratelimit-policy`, `retry-after`, and `x-ratelimit-limit`, `-remaining` and `-reset` if you send
    /// them.
    pub const fn expose(mut self, on: bool) -> Self {
        self.cors_expose = on;
        self
    }

    /// Sets whether responses that a cache may store for other clients go without `RateLimit` and `X-RateLimit-*`.
    ///
    /// A cache repeats the fields of a stored response, so that other clients read the numbers of one client. Off by
    /// default, because only few handlers answer with `Cache-Control: public`, `s-maxage` or `max-age`, `Expires` or
    /// `CDN-Cache-Control`. Rejections are never stored.
    pub const fn skip_shared(mut self, on: bool) -> Self {
        self.skip_shared = on;
        self
    }

    /// Lengthens the waits that rejections state by a random time of at most `percent` of the wait, and at most 60 s.
    ///
    /// The clients that are rejected in one window otherwise return in one moment. No wait is shorter than the exact one.
    /// The setting applies to `Retry-After`, and in gRPC to `RetryInfo` and `grpc-retry-pushback-ms`. The default is 0.
    pub const fn retry_jitter(mut self, percent: u8) -> Self {
        self.retry_jitter = percent;
        self
    }
}

impl_default!(Headers);

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "by value, each call packs five bytes into a register: 25 instructions of the row `service, default`"
)]
impl Headers {
    /// `RateLimit` lists all limits of a response. A rejection names all limits that deny.
    #[inline]
    pub(in crate::response) fn detail(&self) -> Detail {
        if self.rate_limit { Detail::All } else { Detail::AllIfDenied }
    }

    /// Adds the extension of an allowed or exempt request, and returns the context of its response.
    #[inline]
    pub(in crate::response) fn on_allowed(
        &self,
        extensions: &mut Extensions,
        decision: Option<&Decision>,
    ) -> HttpContext {
        if !self.request_extension && !self.changes_responses() {
            return HttpContext(None);
        }
        self.prepare(extensions, decision)
    }

    /// Out of line: row "service, `Http::without_headers`" of benches/figures.md.
    #[inline(never)]
    fn prepare(&self, extensions: &mut Extensions, decision: Option<&Decision>) -> HttpContext {
        if self.request_extension {
            extensions.insert(RateLimitInfo::new(decision));
        }
        if !self.changes_responses() {
            return HttpContext(None);
        }
        let info = self.response_extension.then(|| Box::new(RateLimitInfo::new(decision)));
        HttpContext(Some(self.pending(decision, info)))
    }

    fn pending(&self, decision: Option<&Decision>, info: Option<Box<RateLimitInfo>>) -> PendingHeaders {
        let rate_limit = decision.filter(|_| self.rate_limit);
        let legacy = decision.zip(self.legacy);
        PendingHeaders {
            rate_limit: rate_limit.and_then(|decision| RateLimitHeaders::new(decision.limits())),
            legacy: legacy.and_then(|(decision, reset)| LegacyHeaders::new(decision, reset)),
            info,
            cors_expose: self.cors_expose,
            skip_shared: self.skip_shared,
            observers: Observers::default(),
        }
    }

    /// Adds the headers and the extension of a denied request.
    pub(in crate::response) fn on_denied<B>(&self, response: &mut Response<B>, decision: Decision) {
        let mut pending = self.pending(Some(&decision), None);
        pending.info = self.response_extension.then(|| Box::new(RateLimitInfo::Decided(decision)));
        pending.add_to(response);
    }

    /// Returns the wait that a rejection states.
    pub(in crate::response) fn retry_after(&self, rejection: &Rejection) -> Option<Duration> {
        const MAX_JITTER: Duration = Duration::from_secs(60);
        let wait = rejection.retry_after()?;
        let max = (wait / 100).saturating_mul(self.retry_jitter.into()).min(MAX_JITTER);
        let jitter = Duration::from_nanos(fastrand::u64(0..=u64::try_from(max.as_nanos()).unwrap_or(u64::MAX)));
        Some(wait.saturating_add(jitter))
    }

    /// Appends to `Access-Control-Expose-Headers` if the option is on.
    pub(in crate::response) fn add_exposed<B>(&self, response: &mut Response<B>) {
        if self.cors_expose {
            legacy::expose(response.headers_mut());
        }
    }

    /// Whether the responder adds something to the responses of allowed requests.
    #[inline]
    fn changes_responses(&self) -> bool {
        self.rate_limit || self.legacy.is_some() || self.response_extension
    }
}

/// The headers that an HTTP responder adds to the response of an allowed request.
#[derive(Debug)]
pub struct HttpContext(Option<PendingHeaders>);

/// The numbers of the headers, and the extension, which is boxed because the response's future contains it.
#[derive(Debug)]
struct PendingHeaders {
    rate_limit: Option<RateLimitHeaders>,
    legacy: Option<LegacyHeaders>,
    info: Option<Box<RateLimitInfo>>,
    cors_expose: bool,
    skip_shared: bool,
    /// The observers that receive warnings about the response's headers.
    observers: Observers,
}

impl PendingHeaders {
    fn add_to<B>(self, response: &mut Response<B>) {
        let headers = response.headers_mut();
        let is_skipped = self.skip_shared && legacy::is_shared(headers);
        if let Some(rate_limit) = self.rate_limit.filter(|_| !is_skipped) {
            rate_limit.add(headers, &self.observers);
        }
        if let Some(legacy) = self.legacy.filter(|_| !is_skipped) {
            legacy.add(headers);
        }
        if self.cors_expose {
            legacy::expose(headers);
        }
        if let Some(info) = self.info {
            let extensions = response.extensions_mut();
            // Another limiter may have inserted a value that is as strict.
            if extensions.get::<RateLimitInfo>().is_none_or(|present| info.is_stricter_than(present)) {
                extensions.insert(*info);
            }
        }
    }
}

impl HttpContext {
    /// Sets the observers that receive warnings about the response's headers.
    pub(super) fn observe(&mut self, observers: &Observers) {
        if let Some(pending) = &mut self.0 {
            pending.observers = observers.clone();
        }
    }

    #[inline]
    pub(super) fn map_response<B>(self, mut response: Response<B>) -> Response<B> {
        if let Some(pending) = self.0 {
            pending.add_to(&mut response);
        }
        response
    }
}
