use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "tonic")]
use tonic::server::NamedService;
use tower_service::Service;

use super::config::{
    Config, ConfigOf, Disposition, acquire_options, applied, classify, emit_decided, first_delay, missing_key_event,
    observe_context, observe_first, rejected, rejection_event,
};
use super::cost::{CostPolicy, UnitCost};
use super::future::ResponseFuture;
use super::join::{existing_queue, join_existing};
use super::parts::Parts;
use super::pending::{Deferred, PendingRequest, forward};
use super::queue::limits_of_guard;
use super::request_end::RequestEnd;
use crate::key::{ExtractKey, Extracted, MissingKey};
use crate::limiter::{Limiter, LimiterFuture, Outcome};
use crate::observe::{Event, Observers, WarningKind};
use crate::response::{Http, Rejection, Respond};

/// The service that [`RateLimitLayer`](crate::RateLimitLayer) wraps around an inner service.
///
/// # Readiness
///
/// This service is ready when the inner service is ready. [`call`](Service::call) forwards an allowed request to the
/// instance that [`poll_ready`](Service::poll_ready) made ready. A future keeps that instance while the limiter decides
/// elsewhere. A rejection drops the instance, which releases the capacity that its readiness reserved. A request that
/// waits for its start releases the instance too, and makes a fresh clone ready before the start.
#[derive(Debug)]
pub struct RateLimit<S, K, A, R = Http, T = UnitCost, E = ()> {
    inner: S,
    config: Arc<Config<K, A, R, T>>,
    end: PhantomData<fn() -> E>,
}

impl<S, K, A, R, T, E> RateLimit<S, K, A, R, T, E> {
    pub(crate) fn new(inner: S, config: Arc<Config<K, A, R, T>>) -> Self {
        Self { inner, config, end: PhantomData }
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

// The bounds repeat the bounds of `Parts`, so that the compiler names the part that does not fit.
impl<Request, S, K, A, R, T, E> Service<Request> for RateLimit<S, K, A, R, T, E>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key> + Clone,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
    E: RequestEnd<Request, R::Response>,
    // The body of a waiting request is read ahead if its type is axum's or tonic's.
    Request: 'static,
{
    type Response = E::Response;
    type Error = S::Error;
    type Future = ResponseFuture<Request, (S, K, A, R, T, E)>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let config = &self.config;
        let extracted = config.extractor.extract(&request);
        // Hot path (bench row `service allowed`). Do not move `request`, `extracted` or `acquired` (each memcpy costs a
        // large share of the decision, and waits for the stores before it), and do not borrow `options`: it would be
        // spilled field by field and reloaded as a whole, which stalls.
        let Extracted::Key(key) = &extracted else {
            return call_without_key(&mut self.inner, config, request, extracted);
        };
        let cost = config.cost_policy.cost(&request);
        let mut first_delay = first_delay::<Request, (S, K, A, R, T, E)>(config, &request, key);
        if config.wait.queues.is_active() {
            if let Some(queue) = existing_queue::<Request, (S, K, A, R, T, E)>(config, key, cost) {
                return call_behind_others(&mut self.inner, config, request, extracted, cost, queue);
            }
            first_delay = config.wait.while_active(first_delay);
        }
        let options = acquire_options::<Request, (S, K, A, R, T, E)>(config, &request, cost, first_delay);
        let acquired = config.limiter.acquire(key, options);
        if config.observers.can_warn() {
            observe_first::<Request, (S, K, A, R, T, E)>(config, &request);
        }
        if T::NEEDS_HOLD || E::TRACKS {
            return match acquired.try_ready() {
                Ok(Ok(outcome)) if outcome.decision.is_allowed_now() && outcome.has_whole_guard(E::TRACKS) => {
                    let Outcome { decision, held } = outcome.waking(|| limits_of_guard(key, &config.limiter));
                    emit_decided(&config.observers, &decision);
                    forward::<Request, (S, K, A, R, T, E)>(config, &mut self.inner, request, &decision, held)
                }
                Ok(result) => {
                    let acquired = LimiterFuture::ready(result);
                    call_slow(&mut self.inner, config, request, extracted, cost, acquired)
                }
                Err(pending) => call_slow(&mut self.inner, config, request, extracted, cost, pending),
            };
        }
        let mut context = match acquired.as_ready() {
            Some(Ok(outcome @ Outcome { decision, .. }))
                if decision.is_allowed_now() && outcome.has_whole_guard(E::TRACKS) =>
            {
                emit_decided(&config.observers, decision);
                config.responder.on_allowed(&mut request, applied(decision))
            }
            _ => return call_slow(&mut self.inner, config, request, extracted, cost, acquired),
        };
        observe_context::<Request, (S, K, A, R, T, E)>(config, &mut context);
        ResponseFuture::forwarded(self.inner.call(request), context, E::Tracker::default(), None)
    }
}

/// Handles a request that has no key, or is exempt.
#[inline(never)]
fn call_without_key<Request: 'static, P: Parts<Request>>(
    inner: &mut P::Service,
    config: &Arc<ConfigOf<Request, P>>,
    mut request: Request,
    extracted: Extracted<P::Key>,
) -> ResponseFuture<Request, P> {
    match extracted {
        Extracted::Missing(missing) if config.missing_key.rejects(&missing) => {
            reject(inner, config, request, Rejection::MissingKey(missing))
        }
        unlimited => {
            let missing = if let Extracted::Missing(missing) = &unlimited { Some(missing) } else { None };
            emit_unlimited(&config.observers, missing);
            let context = config.responder.on_allowed(&mut request, None);
            ResponseFuture::forwarded(inner.call(request), context, P::Tracker::default(), None)
        }
    }
}

/// Emits the events of a request to which no limit applies.
#[inline]
fn emit_unlimited(observers: &Observers, missing: Option<&MissingKey>) {
    let Some(missing) = missing else {
        return observers.emit(|| Event::Exempt);
    };
    observers.emit(|| missing_key_event(missing, true));
    if missing.is_server_error() {
        observers.warn_once(WarningKind::ExemptByMisconfiguration, || {
            Some(format!("requests are exempt, and no limit applies: {missing}"))
        });
    }
}

/// Handles a request whose key has a queue: the request waits behind the others.
#[cold]
#[inline(never)]
fn call_behind_others<Request: 'static, P: Parts<Request>>(
    inner: &mut P::Service,
    config: &Arc<ConfigOf<Request, P>>,
    request: Request,
    extracted: Extracted<P::Key>,
    cost: P::Cost,
    queue: u64,
) -> ResponseFuture<Request, P> {
    let Extracted::Key(key) = extracted else { return call_without_key(inner, config, request, extracted) };
    let first_delay = first_delay::<Request, P>(config, &request, &key);
    let options = acquire_options::<Request, P>(config, &request, cost, first_delay);
    match join_existing::<Request, P>(config, &request, key, options, queue) {
        Ok(Ok(waiting)) => {
            let deferred = deferred_unready(inner, config, request, cost);
            ResponseFuture::pending(PendingRequest::awaiting_start(waiting, deferred))
        }
        Ok(Err(rejection)) => reject(inner, config, request, rejection),
        // The queue has ended.
        Err(key) => {
            let acquired = config.limiter.acquire(&key, options);
            call_slow(inner, config, request, Extracted::Key(key), cost, acquired)
        }
    }
}

/// Handles a request that the limiter has not decided yet, has delayed, or has not allowed.
#[inline(never)]
fn call_slow<Request: 'static, P: Parts<Request>>(
    inner: &mut P::Service,
    config: &Arc<ConfigOf<Request, P>>,
    request: Request,
    extracted: Extracted<P::Key>,
    cost: P::Cost,
    acquired: LimiterFuture<Outcome>,
) -> ResponseFuture<Request, P> {
    // Always a key: the callers have checked that. Without a copy, they cannot pass the key alone.
    let Extracted::Key(key) = extracted else { return call_without_key(inner, config, request, extracted) };
    let result = match acquired.try_ready() {
        Ok(result) => result,
        Err(decision) => {
            let deferred = Deferred::new(take_ready(inner), true, request, cost, Arc::clone(config));
            return ResponseFuture::pending(PendingRequest::awaiting_decision(decision, key, deferred));
        }
    };
    match classify::<Request, P>(result, &key, config) {
        Disposition::Reject(rejection) => reject(inner, config, request, rejection),
        disposition => {
            let deferred = deferred_unready(inner, config, request, cost);
            ResponseFuture::from_step(PendingRequest::on_disposition(disposition, key, deferred))
        }
    }
}

/// Releases the readiness of the inner service, of which a request that waits keeps a fresh clone.
fn deferred_unready<Request: 'static, P: Parts<Request>>(
    inner: &mut P::Service,
    config: &Arc<ConfigOf<Request, P>>,
    request: Request,
    cost: P::Cost,
) -> Deferred<Request, P> {
    drop(take_ready(inner));
    Deferred::new(inner.clone(), false, request, cost, Arc::clone(config))
}

fn reject<Request, P: Parts<Request>>(
    inner: &mut P::Service,
    config: &ConfigOf<Request, P>,
    request: Request,
    rejection: Rejection,
) -> ResponseFuture<Request, P> {
    config.observers.emit(|| rejection_event(&rejection, None));
    drop(take_ready(inner));
    ResponseFuture::finished(rejected::<Request, P>(config, request, rejection))
}

/// Takes the instance that `poll_ready` made ready, and leaves a fresh clone.
fn take_ready<S: Clone>(inner: &mut S) -> S {
    let fresh = inner.clone();
    mem::replace(inner, fresh)
}

impl_clone!([S: Clone, K, A, R, T, E] RateLimit<S, K, A, R, T, E> { inner, config, end });

/// Keeps the name of a gRPC service, by which tonic routes its requests.
#[cfg(feature = "tonic")]
impl<S: NamedService, K, A, R, T, E> NamedService for RateLimit<S, K, A, R, T, E> {
    const NAME: &'static str = S::NAME;
}
