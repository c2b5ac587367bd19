use http::{Extensions, Response};

use super::admission::Admission;
use super::fields::{self, LegacyReset};
use super::partition::Hash;

/// What a responder tells of decisions, besides the refusals themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tell {
    pub(super) draft: bool,
    pub(super) legacy: Option<LegacyReset>,
    pub(super) extensions: bool,
    pub(super) exposed: bool,
}

impl Tell {
    pub(super) const NOTHING: Self = Self { draft: false, legacy: None, extensions: false, exposed: false };

    /// Of a request that is let through.
    #[inline(always)]
    pub(super) fn admit(self, extensions: &mut Extensions, admission: Admission, partition: Option<Hash>) -> HttpMark {
        let anything = self.draft || self.legacy.is_some() || self.extensions;
        if !anything {
            return HttpMark { tell: self, admission: None, partition };
        }
        if self.extensions {
            extensions.insert(admission.clone());
        }
        HttpMark { tell: self, admission: Some(admission), partition }
    }

    pub(super) fn tell<B>(self, response: &mut Response<B>, admission: Admission, partition: Option<Hash>) {
        if let Some(decision) = admission.decision() {
            if self.draft {
                fields::add_draft(response.headers_mut(), decision.standings(), partition);
            }
            if let Some(reset) = self.legacy {
                fields::add_legacy(response.headers_mut(), decision, reset);
            }
        }
        self.expose(response);
        if self.extensions {
            let extensions = response.extensions_mut();
            if extensions.get::<Admission>().is_none_or(|there| admission.is_stricter_than(there)) {
                extensions.insert(admission);
            }
        }
    }

    /// Lets scripts of other origins read what is told.
    pub(super) fn expose<B>(self, response: &mut Response<B>) {
        if self.exposed {
            fields::expose(response.headers_mut());
        }
    }
}

/// What [`Http`](super::Http), and those made of it, will tell with the response.
#[derive(Debug)]
pub struct HttpMark {
    tell: Tell,
    admission: Option<Admission>,
    partition: Option<Hash>,
}

impl HttpMark {
    pub(super) fn finish<B>(self, mut response: Response<B>) -> Response<B> {
        if let Some(admission) = self.admission {
            self.tell.tell(&mut response, admission, self.partition);
        }
        response
    }
}
