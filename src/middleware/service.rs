use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(feature = "tonic")]
use tonic::server::NamedService;
use tower_service::Service;

use super::config::{
    Config, ConfigOf, Disposition, acquire_options, classify, missing_key_event, observe_context, rejection_event,
};
use super::cost::{CostPolicy, UnitCost};
use super::future::ResponseFuture;
use super::parts::{DecisionFuture, Parts};
use super::pending::{Deferred, PendingRequest, WithService};
use super::settlement::PendingSettlement;
use crate::key::{ExtractKey, Extracted};
use crate::limiter::{Acquisition, Limiter, Outcome};
use crate::observe::Event;
use crate::response::{Http, Rejection, Respond};

/// The service that [`RateLimitLayer`](crate::RateLimitLayer) wraps around an inner service.
///
/// # Readiness
///
/// This service is ready when the inner service is ready. [`call`](Service::call) forwards an allowed request to the instance
/// that [`poll_ready`](Service::poll_ready) made ready. A future keeps that instance while the limiter decides elsewhere. A
/// rejection drops the instance, which releases the capacity that its readiness reserved. A request that waits for its start
/// releases the instance too, and makes a fresh clone ready before the start.
#[derive(Debug)]
pub struct RateLimit<S, K, A, R = Http, T = UnitCost> {
    inner: S,
    config: Arc<Config<K, A, R, T>>,
}

impl<S, K, A, R, T> RateLimit<S, K, A, R, T> {
    pub(crate) fn new(inner: S, config: Arc<Config<K, A, R, T>>) -> Self {
        Self { inner, config }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

// The bounds are those of `Parts`, repeated so that the compiler names the part that does not fit.
impl<Request, S, K, A, R, T> Service<Request> for RateLimit<S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<Request, (S, K, A, R, T)>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let config = &self.config;
        let key = match config.extractor.extract(&request) {
            Extracted::Key(key) => key,
            Extracted::Missing(missing) if config.rejects(&missing) => {
                return reject(&mut self.inner, config, request, Rejection::MissingKey(missing));
            }
            unlimited => {
                self.settings.observers.emit(|| match &unlimited {
                    Extracted::Missing(missing) => told_missing(missing, true),
                    _ => Event::Exempt,
                });
                let mark = self.settings.responder.on_allowed(&mut request, None);
                return ResponseFuture::called(self.inner.call(request), mark);
            }
        };
        let (cost, patience) = (self.settings.tariff.cost(&request), self.settings.wait.patience());
        let ask = self.settings.ask::<Request, S>(cost, patience);
        // What passes at once is with the inner service before it could be given up.
        let limiter = &self.settings.limiter;
        let acquired = limiter.acquire(&key, ask);
        let mut mark = match &acquired {
            Acquisition::Ready(Ok(Outcome { decision, .. })) if decision.is_allowed_at_once() => {
                self.settings.observers.emit(|| Event::Decided { decision, elapsed: None });
                self.settings.responder.on_allowed(&mut request, Some(decision))
            }
            _ => return call_slow(&mut self.inner, config, request, key, (cost, max_delay), acquired),
        };
        // All of the common case is here, and nothing of it moves needlessly: to move a request or a decision takes as long as a
        // good part of the deciding. So does what was written in pieces and is read as a whole: the ask is lent to nobody.
        self.settings.observe::<Request, S>(&mut mark);
        if T::NEEDS_HOLD
            && let Acquisition::Ready(Ok(Outcome { held: Some(held), .. })) = acquired
        {
            let response = self.inner.call(request);
            return ResponseFuture::to_settle(response, mark, Bill::new(Arc::clone(&self.settings), held));
        }
        ResponseFuture::called(self.inner.call(request), mark)
    }
}

impl<S, K, A, R, T> RateLimit<S, K, A, R, T> {
    /// What is not decided yet, or not so that the request may pass now.
    #[inline(never)]
    fn otherwise<Request>(
        &mut self,
        request: Request,
        key: K::Key,
        cost: u64,
        patience: Option<Duration>,
        acquired: Acquisition<A::Future>,
    ) -> ResponseFuture<Request, S, K, A, R, T>
    where
        S: Service<Request> + Clone,
        K: ExtractKey<Request>,
        A: Limiter<K::Key>,
        R: Respond<Request, S::Response, S::Error>,
        T: CostPolicy<Request, S::Response, S::Error>,
    {
        let ask = self.settings.ask::<Request, S>(cost, patience);
        let result = match acquired {
            Acquisition::Ready(result) => result,
            Acquisition::Pending(decision) => {
                let mut what = Waiting::new(request, key, ask, Arc::clone(&self.settings));
                what.watch.start_decision();
                let held = Held { service: self.take_ready(), is_ready: true, what };
                return ResponseFuture::waiting(Patience::deciding(decision, held));
            }
        };
        match judge(result, patience) {
            Judgement::Refuse(refusal) => self.refuse(request, refusal),
            judgement => {
                drop(self.take_ready());
                let what = Waiting::new(request, key, ask, Arc::clone(&self.settings));
                let held = Held { service: self.inner.clone(), is_ready: false, what };
                ResponseFuture::waiting(Patience::judged(judgement, held))
            }
        }
    }
}

    fn refuse<Request>(&mut self, request: Request, refusal: Rejection) -> ResponseFuture<Request, S, K, A, R, T>
    where
        S: Service<Request> + Clone,
        K: ExtractKey<Request>,
        A: Limiter<K::Key>,
        R: Respond<Request, S::Response, S::Error>,
        T: CostPolicy<Request, S::Response, S::Error>,
    {
        self.settings.observers.emit(|| told(&refusal, None));
        drop(self.take_ready());
        ResponseFuture::refused(self.settings.responder.on_rejected(request, refusal))
    }
}

impl<S: Clone, K, A, R, T> Clone for RateLimit<S, K, A, R, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: Arc::clone(&self.config) }
    }
}

/// Keeps the name of a gRPC service, by which tonic routes its requests.
#[cfg(feature = "tonic")]
impl<S: NamedService, K, A, R, T> NamedService for RateLimit<S, K, A, R, T> {
    const NAME: &'static str = S::NAME;
}
