//! The response headers: `rate_limit` holds the current draft's, `legacy` all others.

mod fmt;
pub(super) mod legacy;
mod rate_limit;

pub(super) use self::fmt::push_number;
pub use self::legacy::ResetFormat;
use http::{Extensions, Response};

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
            return HttpContext(ContextKind::Empty);
        }
        let observers = Observers::default();
        if self.legacy.is_none() && !self.extensions && !self.cors_expose {
            let headers = decision.and_then(|decision| RateLimitHeaders::new(decision.limits()));
            return HttpContext(
                headers.map_or(ContextKind::Empty, |headers| ContextKind::RateLimit(headers, observers)),
            );
        }
        let info = decision.map_or(RateLimitInfo::Exempt, |decision| RateLimitInfo::Decided(decision.clone()));
        if self.extensions {
            extensions.insert(info.clone());
        }
        HttpContext(ContextKind::Pending(Box::new(PendingHeaders { options: self, info, observers })))
    }

    /// Adds the headers and the extension of a denied request.
    pub(super) fn on_denied<B>(self, response: &mut Response<B>, decision: Decision) {
        self.add_headers(response, Some(&decision), &Observers::default());
        self.set_extension(response, RateLimitInfo::Decided(decision));
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

    fn add_headers<B>(self, response: &mut Response<B>, decision: Option<&Decision>, observers: &Observers) {
        if let Some(decision) = decision {
            if self.rate_limit
                && let Some(headers) = RateLimitHeaders::new(decision.limits())
            {
                headers.add(response.headers_mut(), observers);
            }
            if let Some(reset) = self.legacy {
                legacy::add_legacy(response.headers_mut(), decision, reset);
            }
        }
        self.expose(response);
    }

    /// Inserts `info` unless another limiter has inserted a value that is as strict.
    fn set_extension<B>(self, response: &mut Response<B>, info: RateLimitInfo) {
        if self.extensions {
            let extensions = response.extensions_mut();
            if extensions.get::<RateLimitInfo>().is_none_or(|present| info.is_stricter_than(present)) {
                extensions.insert(info);
            }
        }
    }
}

/// The headers that an HTTP responder adds to the response of an allowed request.
#[derive(Debug)]
pub struct HttpContext(ContextKind);

/// Moved with every request from the service into the future, so the large variant is boxed.
#[derive(Debug)]
enum ContextKind {
    Empty,
    /// `RateLimit` and `RateLimit-Policy` only: no clone of the decision, no box.
    RateLimit(RateLimitHeaders, Observers),
    Pending(Box<PendingHeaders>),
}

#[derive(Debug)]
struct PendingHeaders {
    options: HeaderOptions,
    info: RateLimitInfo,
    observers: Observers,
}

impl HttpContext {
    /// Sets the observers that receive warnings about the response's headers.
    pub(super) fn observe(&mut self, observers: &Observers) {
        match &mut self.0 {
            ContextKind::Empty => {}
            ContextKind::RateLimit(_, slot) => *slot = observers.clone(),
            ContextKind::Pending(pending) => pending.observers = observers.clone(),
        }
    }

    #[inline]
    pub(super) fn map_response<B>(self, response: Response<B>) -> Response<B> {
        if let ContextKind::Empty = self.0 {
            return response;
        }
        // Rebind as `mut` only when headers are added: otherwise the response would be copied once more.
        let mut response = response;
        self.add_to(&mut response);
        response
    }

    fn add_to<B>(self, response: &mut Response<B>) {
        match self.0 {
            ContextKind::Empty => {}
            ContextKind::RateLimit(headers, observers) => headers.add(response.headers_mut(), &observers),
            ContextKind::Pending(pending) => {
                let PendingHeaders { options, info, observers } = *pending;
                options.add_headers(response, info.decision(), &observers);
                options.set_extension(response, info);
            }
        }
    }
}
