mod fmt;
pub(super) mod legacy;
mod rate_limit;

pub(super) use self::fmt::push_number;
pub use self::legacy::ResetFormat;
use http::{Extensions, Response};

use self::legacy as fields;
use self::rate_limit::Draft;
use crate::decision::Decision;
use crate::observe::Observers;
use crate::response::info::RateLimitInfo;
use crate::response::partition::Hash;

/// What a responder tells of decisions, besides the refusals themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tell {
    pub(super) draft: bool,
    pub(super) legacy: Option<ResetFormat>,
    pub(super) extensions: bool,
    pub(super) exposed: bool,
}

impl Tell {
    pub(super) const NOTHING: Self = Self { draft: false, legacy: None, extensions: false, exposed: false };

    /// Of a request that is let through.
    pub(super) fn admit(
        self,
        extensions: &mut Extensions,
        admission: RateLimitInfo,
        partition: Option<Hash>,
    ) -> HttpContext {
        if self.is_silent() {
            return HttpContext(Mark::Nothing);
        }
        if self.extensions {
            extensions.insert(admission.clone());
        }
        let (partition, observers) = (partition.map(Box::new), Observers::default());
        HttpContext(Mark::All(Box::new(Telling { tell: self, admission, partition, observers })))
    }

    /// The same by a look at the decision, where that is enough.
    #[inline]
    pub(super) fn admit_ref(
        self,
        decision: &Decision,
        partition: impl FnOnce() -> Option<Hash>,
    ) -> Option<HttpContext> {
        if self.is_silent() {
            return Some(HttpContext(Mark::Nothing));
        }
        if self.legacy.is_some() || self.extensions || self.exposed {
            return None;
        }
        let draft = Draft::of(decision.limits(), partition());
        Some(HttpContext(draft.map_or(Mark::Nothing, |draft| Mark::Draft(draft, Observers::default()))))
    }

    /// Of one that is not.
    pub(super) fn refuse<B>(self, response: &mut Response<B>, decision: Decision, partition: Option<Hash>) {
        self.add_fields(response, Some(&decision), partition, &Observers::default());
        self.extend(response, RateLimitInfo::Decided(decision));
    }

    /// Lets scripts of other origins read what is told.
    pub(super) fn expose<B>(self, response: &mut Response<B>) {
        if self.exposed {
            fields::expose(response.headers_mut());
        }
    }

    /// Whether it tells nothing of what is let through.
    #[inline]
    fn is_silent(self) -> bool {
        !self.draft && self.legacy.is_none() && !self.extensions
    }

    fn add_fields<B>(
        self,
        response: &mut Response<B>,
        decision: Option<&Decision>,
        partition: Option<Hash>,
        observers: &Observers,
    ) {
        if let Some(decision) = decision {
            if self.draft
                && let Some(draft) = Draft::of(decision.limits(), partition)
            {
                draft.add(response.headers_mut(), observers);
            }
            if let Some(reset) = self.legacy {
                fields::add_legacy(response.headers_mut(), decision, reset);
            }
        }
        self.expose(response);
    }

    /// Of several limiters, the strictest one's admission stays.
    fn extend<B>(self, response: &mut Response<B>, admission: RateLimitInfo) {
        if self.extensions {
            let extensions = response.extensions_mut();
            if extensions.get::<RateLimitInfo>().is_none_or(|there| admission.is_stricter_than(there)) {
                extensions.insert(admission);
            }
        }
    }
}

/// What [`Http`](super::Http), and those made of it, will tell with the response.
#[derive(Debug)]
pub struct HttpContext(Mark);

/// It is moved about with every request, so it is small.
#[derive(Debug)]
enum Mark {
    Nothing,
    /// The draft's fields, and nothing else.
    Draft(Draft, Observers),
    All(Box<Telling>),
}

/// No larger than what the compiler moves by itself: to call a function that copies takes longer.
#[derive(Debug)]
struct Telling {
    tell: Tell,
    admission: RateLimitInfo,
    partition: Option<Box<Hash>>,
    observers: Observers,
}

impl HttpContext {
    /// Emits warnings to `observers`, if there is anything to add to the response.
    pub(super) fn observe(&mut self, observers: &Observers) {
        match &mut self.0 {
            Mark::Nothing => {}
            Mark::Draft(_, told) => *told = observers.clone(),
            Mark::All(telling) => telling.observers = observers.clone(),
        }
    }

    #[inline]
    pub(super) fn finish<B>(self, response: Response<B>) -> Response<B> {
        if let Mark::Nothing = self.0 {
            return response;
        }
        // Only what is changed needs to be where it can be: to move it there takes a while.
        let mut response = response;
        self.tell(&mut response);
        response
    }

    fn tell<B>(self, response: &mut Response<B>) {
        match self.0 {
            Mark::Nothing => {}
            Mark::Draft(draft, observers) => draft.add(response.headers_mut(), &observers),
            Mark::All(telling) => {
                let (tell, partition) = (telling.tell, telling.partition.as_deref().copied());
                tell.add_fields(response, telling.admission.decision(), partition, &telling.observers);
                tell.extend(response, telling.admission);
            }
        }
    }
}
