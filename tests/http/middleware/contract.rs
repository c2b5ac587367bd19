//! The contract of `tower::Service`: random calls of clones of a service, against a model of permits and calls.
//!
//! Decisions are immediate, or pending until the test completes them. A future is dropped at any stage.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio_test::task;
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, Rejection};
use tower_ratelimit::{AcquireOptions, Limiter};

use crate::random::Random;
use crate::support::{
    Act, Counter, Failure, Limited, PendingDecision, Pool, RemoteLimiter, StubLimiter, TestRequest, limited,
};

const PERMITS: usize = 3;

/// A limiter whose next decision is immediate if the test has planned one, and pending otherwise.
#[derive(Clone, Default)]
struct Planned {
    immediate: Arc<Mutex<Option<StubLimiter>>>,
    pending: RemoteLimiter,
}

impl Limiter<&'static str> for Planned {
    fn acquire(&self, key: &&'static str, options: AcquireOptions) -> LimiterFuture<Outcome> {
        assert_eq!(options, AcquireOptions::default());
        let planned = self.immediate.lock().expect("no panic").take();
        planned.map_or_else(|| self.pending.acquire(key, options), |planned| planned.acquire(key, options))
    }
}

/// The stage of a response.
enum Stage {
    /// Undecided: the acquire, and whether the future was polled since.
    Deciding(PendingDecision, bool),
    Decided(StubLimiter),
    Forwarded,
    Rejected(Option<StubLimiter>),
}

struct Open {
    response: task::Spawn<Pin<Box<dyn Future<Output = Result<usize, BoxError>> + Send>>>,
    request: TestRequest,
    /// The instance that was made ready.
    instance: usize,
    stage: Stage,
}

impl Open {
    fn has_permit(&self) -> bool {
        !matches!(self.stage, Stage::Rejected(_))
    }
}

struct Trace {
    random: Random,
    pool: Pool,
    limiter: Planned,
    /// Each service, the instance that is ready, and whether it waits for a permit.
    services: Vec<(Limited<Counter>, Option<usize>, bool)>,
    open: Vec<Open>,
    calls: Vec<(usize, TestRequest)>,
    seen: HashMap<&'static str, u64>,
}

fn outcome(random: &mut Random) -> StubLimiter {
    let kinds = [StubLimiter::allowing, StubLimiter::denying, StubLimiter::exceeding, StubLimiter::failing];
    random.choose(&[kinds[0], kinds[0], kinds[0], kinds[1], kinds[2], kinds[3]])()
}

fn is_allowed(outcome: &StubLimiter) -> bool {
    outcome.0.as_ref().is_ok_and(tower_ratelimit::Decision::is_allowed)
}

impl Trace {
    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn poll_ready(&mut self, index: usize) {
        let free = self.pool.free();
        let (service, ready, waits) = &mut self.services[index];
        let polled = service.poll_ready().map(|result| result.expect("ready"));
        assert_eq!(polled.is_ready(), ready.is_some() || free > 0);
        *waits = polled.is_pending();
        if polled.is_ready() {
            let instance = service.get_ref().get_ref().instance;
            assert!(ready.is_none_or(|ready| ready == instance), "the ready instance is kept");
            *ready = Some(instance);
        }
    }

    fn call(&mut self, index: usize) {
        let key = self.random.choose(&[Some("a"), Some("a"), Some("b"), Some("exempt"), None]);
        let act =
            self.random.choose(&[Act::Answer, Act::Answer, Act::Fail, Act::Hang, Act::PanicInCall, Act::PanicInFuture]);
        let request = TestRequest { key, act };
        let (is_limited, is_pending) = (matches!(key, Some("a" | "b")), self.random.below(2) == 0);
        let planned = (is_limited && !is_pending).then(|| outcome(&mut self.random));
        self.limiter.immediate.lock().expect("no panic").clone_from(&planned);
        let (service, ready, _) = &mut self.services[index];
        let instance = ready.take();
        let is_forwarded = planned.as_ref().is_some_and(is_allowed) || key == Some("exempt");
        let instances = self.pool.instances();
        let called = catch_unwind(AssertUnwindSafe(|| service.call(request)));
        assert!(!is_forwarded || self.pool.instances() == instances, "the service is not cloned");
        assert!(self.limiter.immediate.lock().expect("no panic").is_none(), "the limiter decides in `call`");
        let Some(instance) = instance else {
            assert_eq!(called.is_err(), is_forwarded, "the service was called without having been made ready");
            if is_limited && is_pending {
                drop(self.limiter.pending.next_acquire());
            }
            return self.see("not ready");
        };
        if is_forwarded {
            self.calls.push((instance, request));
        }
        let Ok(response) = called else {
            assert!(is_forwarded && act == Act::PanicInCall);
            return self.see("panic");
        };
        let stage = match planned {
            _ if is_forwarded => Stage::Forwarded,
            None if is_limited => {
                let acquire = self.limiter.pending.next_acquire();
                assert_eq!(Some(acquire.key), key);
                Stage::Deciding(acquire, false)
            }
            planned => Stage::Rejected(planned),
        };
        let response: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(response);
        self.open.push(Open { response: task::spawn(response), request, instance, stage });
    }

    fn complete(&mut self, index: usize) {
        let Open { response, stage, .. } = &mut self.open[index];
        let Stage::Deciding(..) = stage else { return };
        let outcome = outcome(&mut self.random);
        let Stage::Deciding(acquire, was_polled) = std::mem::replace(stage, Stage::Decided(outcome.clone())) else {
            unreachable!()
        };
        acquire.complete(outcome);
        assert!(!was_polled || response.is_woken(), "by the decision");
    }

    fn poll(&mut self, index: usize) {
        let Open { response, request, instance, stage } = &mut self.open[index];
        let (act, instance) = (request.act, *instance);
        let is_late = matches!(stage, Stage::Decided(outcome) if is_allowed(outcome));
        if is_late {
            self.calls.push((instance, *request));
        }
        match stage {
            Stage::Decided(outcome) if !is_late => *stage = Stage::Rejected(Some(outcome.clone())),
            Stage::Decided(_) => *stage = Stage::Forwarded,
            _ => {}
        }
        let polled = catch_unwind(AssertUnwindSafe(|| response.poll()));
        let what = match (&mut *stage, polled) {
            (Stage::Deciding(_, was_polled), Ok(Poll::Pending)) => {
                *was_polled = true;
                return;
            }
            (Stage::Forwarded, Ok(Poll::Pending)) if act == Act::Hang => return,
            (Stage::Forwarded, Ok(Poll::Ready(Ok(by)))) if act == Act::Answer => {
                assert_eq!(by, instance);
                "answer"
            }
            (Stage::Forwarded, Ok(Poll::Ready(Err(error)))) if act == Act::Fail => {
                assert_eq!(error.downcast_ref(), Some(&Failure), "the service's own error, as it is");
                "failure"
            }
            (Stage::Forwarded, Err(_)) if act == Act::PanicInFuture || is_late && act == Act::PanicInCall => "panic",
            (Stage::Rejected(outcome), Ok(Poll::Ready(Err(error)))) => {
                let rejection = error.downcast_ref::<Rejection>().expect("the limiter's error");
                let is_expected = match outcome {
                    None => matches!(rejection, Rejection::MissingKey(_)),
                    Some(StubLimiter(Err(_))) => matches!(rejection, Rejection::Unavailable(_)),
                    Some(StubLimiter(Ok(decision))) => {
                        rejection.retry_after() == decision.retry_after() && rejection.decision().is_some()
                    }
                };
                assert!(is_expected, "{rejection:?}");
                // The completed future is not dropped yet, and holds no permit.
                self.check();
                "rejected"
            }
            (_, polled) => panic!("{request:?}: {polled:?}"),
        };
        self.open.swap_remove(index);
        self.see(what);
    }

    fn step(&mut self) {
        let index = self.random.index(self.services.len());
        let one = self.random.index(self.open.len().max(1));
        match self.random.below(10) {
            0..=2 => self.poll_ready(index),
            // A call without readiness is rare.
            3 | 4 if self.services[index].1.is_some() || self.random.below(20) == 0 => self.call(index),
            5 if self.services.len() < 5 => {
                let clone = self.services[index].0.clone();
                self.services.push((clone, None, false));
            }
            6 if self.services.len() > 2 => drop(self.services.swap_remove(index)),
            7 if !self.open.is_empty() => self.complete(one),
            8 if !self.open.is_empty() => {
                let Open { response, stage, .. } = self.open.swap_remove(one);
                drop(response);
                if let Stage::Deciding(acquire, _) = stage {
                    assert!(acquire.is_abandoned(), "the acquire is dropped with the future");
                    self.see("dropped while deciding");
                }
                self.see("dropped");
            }
            _ if !self.open.is_empty() => self.poll(one),
            _ => {}
        }
        self.check();
    }

    /// The permits are those of ready services and of futures that are not rejected, and waiting services are woken.
    fn check(&mut self) {
        let ready = self.services.iter().filter(|service| service.1.is_some()).count();
        let held = self.open.iter().filter(|open| open.has_permit()).count();
        assert_eq!(self.pool.free(), PERMITS - ready - held);
        assert_eq!(self.pool.calls(), self.calls);
        for (service, _, waits) in self.services.iter_mut().filter(|_| ready + held < PERMITS) {
            assert!(!std::mem::take(waits) || service.is_woken(), "a waiting service is woken");
        }
    }
}

/// The law: a request goes once to the instance that was made ready, after its decision; a rejection, a panic and a drop
/// return the permit; and no clone has the readiness of another one.
#[test]
fn services_keep_the_contract_at_any_stage() {
    let mut seen = HashMap::<_, u64>::new();
    for seed in 0..100 {
        let (pool, limiter) = (Pool::new(PERMITS), Planned::default());
        let services = vec![(limited(pool.service(), limiter.clone()), None, false)];
        let (random, calls) = (Random::new(seed), Vec::new());
        let mut trace = Trace { random, pool, limiter, services, open: Vec::new(), calls, seen: HashMap::new() };
        (0..300).for_each(|_| trace.step());
        for (what, count) in trace.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    for what in ["answer", "failure", "panic", "rejected", "dropped", "dropped while deciding", "not ready"] {
        assert!(seen.get(what).copied().unwrap_or(0) > 100, "{what}: {seen:?}");
    }
}
