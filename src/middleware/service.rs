use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use super::config::{Judgement, Settings, judge, told, told_missing};
use super::cost::{CostPolicy, UnitCost};
use super::future::ResponseFuture;
use super::pending::{Held, Patience};
use super::scheduled::Waiting;
use super::settlement::Bill;
use crate::key::{ExtractKey, Extracted};
use crate::limiter::{Acquisition, Limiter, Outcome};
use crate::observe::Event;
use crate::response::{Http, RateLimitInfo, Rejection, Respond};

/// The service that [`RateLimitLayer`](crate::RateLimitLayer) makes.
///
/// It is ready when the inner service is. A decision that is ready at once forwards the request to the very instance that
/// was made ready; one that is still on its way keeps that instance. A refusal drops it, and so releases what its readiness
/// reserved. So does a request that waits for its turn: a fresh instance is made ready when the turn has come.
#[derive(Debug)]
pub struct RateLimit<S, K, A, R = Http, T = UnitCost> {
    inner: S,
    settings: Arc<Settings<K, A, R, T>>,
}

impl<S, K, A, R, T> RateLimit<S, K, A, R, T> {
    pub(crate) fn new(inner: S, settings: Arc<Settings<K, A, R, T>>) -> Self {
        Self { inner, settings }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K, A, R, T> RateLimit<S, K, A, R, T> {
    /// Takes the instance that was made ready, and leaves a fresh one.
    fn take_ready(&mut self) -> S {
        let fresh = self.inner.clone();
        mem::replace(&mut self.inner, fresh)
    }
}

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
    type Future = ResponseFuture<Request, S, K, A, R, T>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let key = match self.settings.key.extract(&request) {
            Extracted::Key(key) => key,
            Extracted::Missing(missing) if self.settings.refuses(&missing) => {
                return self.refuse(request, Rejection::MissingKey(missing));
            }
            unlimited => {
                self.settings.observers.tell(|| match &unlimited {
                    Extracted::Missing(missing) => told_missing(missing, true),
                    _ => Event::Exempt,
                });
                let mark = self.settings.responder.admit(&mut request, RateLimitInfo::Exempt);
                return ResponseFuture::called(self.inner.call(request), mark);
            }
        };
        let (cost, patience) = (self.settings.tariff.cost(&request), self.settings.wait.patience());
        let ask = self.settings.ask::<Request, S>(cost, patience);
        // What passes at once is with the inner service before it could be given up.
        let limiter = &self.settings.limiter;
        let acquired = limiter.acquire(&key, ask);
        let mark = match &acquired {
            Acquisition::Ready(Ok(Outcome { decision, .. })) if decision.is_allowed_now() => {
                self.settings.observers.tell(|| Event::Decided { decision, took: None });
                self.settings.responder.admit_ref(&request, decision)
            }
            _ => return self.otherwise(request, key, cost, patience, acquired),
        };
        // All of the common case is here, and nothing of it moves needlessly: to move a request or a decision takes as long as a
        // good part of the deciding. So does what was written in pieces and is read as a whole: the ask is lent to nobody.
        if !T::NEEDS_HOLD
            && let Some(mut mark) = mark
        {
            self.settings.observe::<Request, S>(&mut mark);
            return ResponseFuture::called(self.inner.call(request), mark);
        }
        let Acquisition::Ready(Ok(Outcome { decision, held })) = acquired else {
            unreachable!("it was just looked at")
        };
        let mut mark =
            mark.unwrap_or_else(|| self.settings.responder.admit(&mut request, RateLimitInfo::Decided(decision)));
        self.settings.observe::<Request, S>(&mut mark);
        let response = self.inner.call(request);
        match held {
            Some(held) => ResponseFuture::to_settle(response, mark, Bill::new(Arc::clone(&self.settings), held)),
            None => ResponseFuture::called(response, mark),
        }
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
                what.watch.deciding();
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

    fn refuse<Request>(&mut self, request: Request, refusal: Rejection) -> ResponseFuture<Request, S, K, A, R, T>
    where
        S: Service<Request> + Clone,
        K: ExtractKey<Request>,
        A: Limiter<K::Key>,
        R: Respond<Request, S::Response, S::Error>,
        T: CostPolicy<Request, S::Response, S::Error>,
    {
        self.settings.observers.tell(|| told(&refusal, None));
        drop(self.take_ready());
        ResponseFuture::refused(self.settings.responder.refuse(request, refusal))
    }
}

impl<S: Clone, K, A, R, T> Clone for RateLimit<S, K, A, R, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}
