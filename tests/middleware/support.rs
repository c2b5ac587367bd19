//! What the tests use in place of the world: an inner service with counted permits, and limiters that say what they are
//! told to.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;
use tower::{Layer, Service};
use tower_ratelimit::key::{Extracted, Missing};
use tower_ratelimit::limiter::{Acquisition, BoxFuture, Limiter, Outcome};
use tower_ratelimit::response::RejectWithError;
use tower_ratelimit::{
    AcquireOptions, Decision, DecisionSource, Error, FixedWindow, LimitSnapshot, LimitStatus, ManualClock, Memory,
    Quota, RateLimit, RateLimitLayer, Timestamp, Verdict,
};
use tower_test::mock::Spawn;

/// A request to [`Counter`]: whose it is (nobody's is a missing key, `exempt` is under no limit), and what the service
/// is to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) key: Option<&'static str>,
    pub(crate) act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Answer,
    Fail,
    /// Its future never ends.
    Hang,
    PanicInCall,
    PanicInFuture,
}

impl Job {
    pub(crate) const fn of(key: &'static str) -> Self {
        Self { key: Some(key), act: Act::Answer }
    }

    pub(crate) const NOBODYS: Self = Self { key: None, act: Act::Answer };

    pub(crate) const fn that(self, act: Act) -> Self {
        Self { act, ..self }
    }
}

/// Whose a [`Job`] is.
pub(crate) fn whose(job: &Job) -> Extracted<&'static str> {
    match job.key {
        Some("exempt") => Extracted::Exempt,
        Some(key) => Extracted::Key(key),
        None => Extracted::Missing(Missing::from_request("nobody's")),
    }
}

pub(crate) type Whose = fn(&Job) -> Extracted<&'static str>;

/// The limiter around a service, answering with errors.
pub(crate) type Limited<S, A> = Spawn<RateLimit<S, Whose, A, RejectWithError>>;

pub(crate) fn limited<S, A: Clone>(inner: S, limiter: A) -> Limited<S, A> {
    Spawn::new(RateLimitLayer::new(whose as Whose, limiter).responder(RejectWithError).layer(inner))
}

/// A service whose readiness reserves one of a counted number of permits, and which panics if it is called without.
///
/// Every clone is an instance with a number of its own, and holds no permit. It answers with its number.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) instance: usize,
    permit: Option<Permit>,
    pool: Pool,
}

/// The permits, and what has happened.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    free: usize,
    instances: usize,
    calls: Vec<(usize, Job)>,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct Permit(Pool);

impl Pool {
    pub(crate) fn of(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Books { free: permits, instances: 0, calls: Vec::new(), waiting: Vec::new() })))
    }

    fn books<T>(&self, f: impl FnOnce(&mut Books) -> T) -> T {
        // A test that panics on purpose must not hide the books from the assertions after it.
        f(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(crate) fn service(&self) -> Counter {
        let instance = self.books(|books| {
            books.instances += 1;
            books.instances
        });
        Counter { instance, permit: None, pool: self.clone() }
    }

    pub(crate) fn free(&self) -> usize {
        self.books(|books| books.free)
    }

    /// How many instances have ever been made.
    pub(crate) fn instances(&self) -> usize {
        self.books(|books| books.instances)
    }

    /// Which instance was called with what, in order.
    pub(crate) fn calls(&self) -> Vec<(usize, Job)> {
        self.books(|books| books.calls.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let waiting = self.0.books(|books| {
            books.free += 1;
            std::mem::take(&mut books.waiting)
        });
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        self.pool.service()
    }
}

/// An error of the inner service's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inner service has failed")
    }
}

impl std::error::Error for Failure {}

impl Service<Job> for Counter {
    type Response = usize;
    type Error = Failure;
    type Future = Working;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.permit.is_none() {
            let granted = self.pool.books(|books| {
                let rest = books.free.checked_sub(1);
                if rest.is_none() {
                    books.waiting.push(cx.waker().clone());
                }
                books.free = rest.unwrap_or(0);
                rest.is_some()
            });
            if !granted {
                return Poll::Pending;
            }
            self.permit = Some(Permit(self.pool.clone()));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> Working {
        let permit = self.permit.take().expect("called without having been made ready");
        self.pool.books(|books| books.calls.push((self.instance, job)));
        assert!(job.act != Act::PanicInCall, "told to panic in `call`");
        Working { instance: self.instance, act: job.act, _permit: permit }
    }
}

/// [`Counter`]'s future. It holds the permit.
#[derive(Debug)]
pub(crate) struct Working {
    instance: usize,
    act: Act,
    _permit: Permit,
}

impl Future for Working {
    type Output = Result<usize, Failure>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.act {
            Act::Answer => Poll::Ready(Ok(self.instance)),
            Act::Fail => Poll::Ready(Err(Failure)),
            Act::Hang => Poll::Pending,
            Act::PanicInCall | Act::PanicInFuture => panic!("told to panic"),
        }
    }
}

/// A memory of `limit` a minute for each key, and its clock.
pub(crate) fn per_minute(limit: u64) -> (Memory<FixedWindow, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter =
        Memory::builder(FixedWindow::new(Quota::per_minute(limit))).max_keys(100).clock(clock.clone()).build();
    (limiter.expect("a limiter"), clock)
}

/// A limiter that answers at once, and the same to everybody.
#[derive(Clone)]
pub(crate) struct Says(pub(crate) Result<Decision, Error>);

impl<Key: ?Sized> Limiter<Key> for Says {
    type Future = std::future::Ready<Result<Outcome, Error>>;

    fn acquire(&self, _key: &Key, _ask: AcquireOptions) -> Acquisition<Self::Future> {
        Acquisition::Ready(self.0.clone().map(Outcome::from))
    }
}

impl Says {
    pub(crate) fn yes() -> Self {
        Self(Ok(decision(Verdict::Allowed)))
    }

    pub(crate) fn no() -> Self {
        Self(Ok(decision(Verdict::Denied { retry_after: Duration::from_millis(1500) })))
    }

    pub(crate) fn never() -> Self {
        Self(Ok(decision(Verdict::ExceedsLimit)))
    }

    pub(crate) fn broken() -> Self {
        Self(Err(Error::unavailable("the wire is cut")))
    }

    /// A declared policy for a store that can't answer.
    pub(crate) fn by_policy(verdict: Verdict) -> Self {
        Self(Ok(Decision::by_policy(Timestamp::EPOCH, verdict)))
    }

    pub(crate) fn by(source: DecisionSource, verdict: Verdict) -> Self {
        Self(Ok(decision(verdict).with_source(source)))
    }
}

/// A decision of the one limit `told`: 3 of 5 a minute are left.
pub(crate) fn decision(verdict: Verdict) -> Decision {
    let figures = LimitSnapshot {
        limit: 5,
        window: Duration::from_secs(60),
        remaining: 3,
        reset: Duration::from_secs(40),
        next_token_after: Duration::from_secs(12),
    };
    Decision::from_limit(ManualClock::START, LimitStatus::new("told", verdict, figures))
}

/// A limiter that leaves every decision to the test.
#[derive(Clone, Default)]
pub(crate) struct Elsewhere(Arc<Mutex<VecDeque<Question>>>);

/// What was asked of [`Elsewhere`], to be answered.
pub(crate) struct Question {
    pub(crate) key: &'static str,
    pub(crate) ask: AcquireOptions,
    answer: oneshot::Sender<Result<Decision, Error>>,
}

impl Elsewhere {
    /// The oldest question that is not answered.
    pub(crate) fn asked(&self) -> Question {
        self.0.lock().unwrap().pop_front().expect("the limiter was not asked")
    }
}

impl Question {
    pub(crate) fn answer(self, says: Says) {
        self.answer.send(says.0).expect("nobody waits for the answer");
    }

    /// Whether whoever asked has gone away.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }
}

impl Limiter<&'static str> for Elsewhere {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, &key: &&'static str, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let (answer, reply) = oneshot::channel();
        self.0.lock().unwrap().push_back(Question { key, ask, answer });
        Acquisition::Pending(Box::pin(async {
            let answered = reply.await.map_err(|_| Error::unavailable("the store hung up"))?;
            answered.map(Outcome::from)
        }))
    }
}
