//! The response headers: `rate_limit` holds the current draft's, `legacy` all others.

mod fmt;
pub(super) mod legacy;
mod rate_limit;

pub(super) use self::fmt::push_number;
pub use self::legacy::ResetFormat;
use std::sync::Arc;

use http::{Extensions, Response};

use self::legacy::LegacyHeaders;
use self::rate_limit::RateLimitHeaders;
use crate::decision::{Decision, Detail};
use crate::observe::Observers;
use crate::response::info::RateLimitInfo;

/// The headers and extensions that a responder adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderOptions {
    pub(super) rate_limit: bool,
    pub(super) legacy: Option<ResetFormat>,
    pub(super) extensions: bool,
    pub(super) cors_expose: bool,
}

impl HeaderOptions {
    pub(super) const EMPTY: Self = Self { rate_limit: false, legacy: None, extensions: false, cors_expose: false };

    /// `RateLimit` lists all limits of a response. A rejection names all limits that deny.
    #[inline]
    pub(super) fn detail(self) -> Detail {
        if self.rate_limit { Detail::All } else { Detail::AllIfDenied }
    }

    /// Adds the extension of an allowed or exempt request, and returns the context of its response.
    #[inline]
    pub(super) fn on_allowed(self, extensions: &mut Extensions, decision: Option<&Decision>) -> HttpContext {
        if self.is_disabled() {
            return HttpContext(None);
        }
        let info = self.extensions.then(|| match decision {
            Some(decision) => RateLimitInfo::Decided(Arc::new(decision.clone())),
            None => RateLimitInfo::Exempt,
        });
        if let Some(info) = &info {
            extensions.insert(info.clone());
        }
        HttpContext(Some(PendingHeaders::new(self, decision, info)))
    }

    /// Adds the headers and the extension of a denied request.
    pub(super) fn on_denied<B>(self, response: &mut Response<B>, decision: Decision) {
        let mut pending = PendingHeaders::new(self, Some(&decision), None);
        pending.info = self.extensions.then(|| RateLimitInfo::Decided(Arc::new(decision)));
        pending.add_to(response);
    }

    /// Appends to `Access-Control-Expose-Headers` if the option is on.
    pub(super) fn expose<B>(self, response: &mut Response<B>) {
        if self.cors_expose {
            legacy::expose(response.headers_mut());
        }
    }

    /// Whether the responder adds nothing to allowed requests and their responses.
    #[inline]
    fn is_disabled(self) -> bool {
        !self.rate_limit && self.legacy.is_none() && !self.extensions
    }
}

/// The headers that an HTTP responder adds to the response of an allowed request.
#[derive(Debug)]
pub struct HttpContext(Option<PendingHeaders>);

/// The numbers of the headers, and the extension. It holds no decision of its own: the decision is shared with the
/// request, or not needed any more.
#[derive(Debug)]
struct PendingHeaders {
    rate_limit: Option<RateLimitHeaders>,
    legacy: Option<LegacyHeaders>,
    info: Option<RateLimitInfo>,
    cors_expose: bool,
    /// The observers that receive warnings about the response's headers.
    observers: Observers,
}

impl PendingHeaders {
    fn new(options: HeaderOptions, decision: Option<&Decision>, info: Option<RateLimitInfo>) -> Self {
        let rate_limit = decision.filter(|_| options.rate_limit);
        let legacy = decision.zip(options.legacy);
        Self {
            rate_limit: rate_limit.and_then(|decision| RateLimitHeaders::new(decision.limits())),
            legacy: legacy.and_then(|(decision, reset)| LegacyHeaders::new(decision, reset)),
            info,
            cors_expose: options.cors_expose,
            observers: Observers::default(),
        }
    }

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
                extensions.insert(info);
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
    pub(super) fn map_response<B>(self, response: Response<B>) -> Response<B> {
        let Some(pending) = self.0 else { return response };
        // Rebind as `mut` only when headers are added: otherwise the response would be copied once more.
        let mut response = response;
        pending.add_to(&mut response);
        response
    }
}
