//! The response headers: `rate_limit` holds the current draft's, `legacy` all others.

pub(super) mod legacy;
mod rate_limit;

pub use self::legacy::ResetFormat;
pub use self::rate_limit::RateLimitFormat;
use http::{Extensions, Response};

use self::legacy::LegacyHeaders;
use self::rate_limit::RateLimitHeaders;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;
use crate::response::info::RateLimitInfo;

/// The headers and extensions that a responder adds.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent options")]
pub(super) struct HeaderOptions {
    pub(super) rate_limit: Option<RateLimitFormat>,
    pub(super) legacy: Option<ResetFormat>,
    pub(super) request_extension: bool,
    pub(super) response_extension: bool,
    pub(super) cors_expose: bool,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "by value, each call packs five bytes into a register: 25 instructions of the row `service, default`"
)]
impl HeaderOptions {
    pub(super) const EMPTY: Self = Self {
        rate_limit: None,
        legacy: None,
        request_extension: false,
        response_extension: false,
        cors_expose: false,
    };

    /// `RateLimit` lists all limits of a response. A rejection names all limits that deny.
    #[inline]
    pub(super) fn detail(&self) -> Detail {
        if self.rate_limit.is_some() { Detail::All } else { Detail::AllIfDenied }
    }

    /// Adds the extension of an allowed or exempt request, and returns the context of its response.
    #[inline]
    pub(super) fn on_allowed(&self, extensions: &mut Extensions, decision: Option<&Decision>) -> HttpContext {
        if !self.request_extension && !self.changes_responses() {
            return HttpContext(None);
        }
        self.prepare(extensions, decision)
    }

    /// Out of line: row "service, `Http::minimal`" of docs/performance.md.
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
        let rate_limit = decision.filter(|_| self.rate_limit.is_some());
        let legacy = decision.zip(self.legacy);
        PendingHeaders {
            rate_limit: rate_limit.and_then(|decision| RateLimitHeaders::new(decision.limits())),
            legacy: legacy.and_then(|(decision, reset)| LegacyHeaders::new(decision, reset)),
            info,
            cors_expose: self.cors_expose,
            observers: Observers::default(),
        }
    }

    /// Adds the headers and the extension of a denied request.
    pub(super) fn on_denied<B>(&self, response: &mut Response<B>, decision: Decision) {
        let mut pending = self.pending(Some(&decision), None);
        pending.info = self.response_extension.then(|| Box::new(RateLimitInfo::Decided(decision)));
        pending.add_to(response);
    }

    /// Appends to `Access-Control-Expose-Headers` if the option is on.
    pub(super) fn expose<B>(&self, response: &mut Response<B>) {
        if self.cors_expose {
            legacy::expose(response.headers_mut());
        }
    }

    /// Whether the responder adds something to the responses of allowed requests.
    #[inline]
    fn changes_responses(&self) -> bool {
        self.rate_limit.is_some() || self.legacy.is_some() || self.response_extension
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
    /// The observers that receive warnings about the response's headers.
    observers: Observers,
}

impl PendingHeaders {
    fn add_to<B>(self, response: &mut Response<B>) {
        let headers = response.headers_mut();
        if let Some(rate_limit) = self.rate_limit {
            rate_limit.add(headers, &self.observers);
        }
        if let Some(legacy) = self.legacy {
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
