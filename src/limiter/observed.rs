use super::held::Held;
use super::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::observe::{Event, Observer, Observers, OutcomeGuard};
use crate::runtime::Instant;

/// A limiter that emits the events of its decisions, for code that calls a limiter without the layer.
///
/// Logins, jobs and streams are then in the same metrics, logs and alerts as the requests of the layer. Each call of
/// [`acquire`](Limiter::acquire), `check` or `hold` emits one of the layer's terminal events:
///
/// | Event | When |
/// |---|---|
/// | [`Decided`](Event::Decided) | the limiter has decided |
/// | [`Exempt`](Event::Exempt) | no limit applies |
/// | [`Failed`](Event::Failed) | the limiter has returned an error |
/// | [`Abandoned`](Event::Abandoned) | the future of the decision was dropped |
///
/// The guard of a hold emits [`Settled`](Event::Settled), and the guard of a request [in flight](crate::InFlight)
/// [`InFlightStarted`](Event::InFlightStarted) and [`InFlightEnded`](Event::InFlightEnded). Peeks and administrative
/// operations emit nothing.
///
/// ```
/// use tower_ratelimit::limiter::Observed;
/// use tower_ratelimit::observe::Event;
/// use tower_ratelimit::{FixedWindow, Limiter, Memory, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let attempts = Memory::new(FixedWindow::new(Quota::per_minute(5)));
/// let attempts = Observed::new(attempts, |event: &Event<'_>| println!("login: {:?}", event.outcome()));
///
/// let decision = attempts.check("alice", 1).await?;
/// assert!(decision.is_allowed());
/// # Ok(())
/// # }
/// ```
///
/// # Where to put it
///
/// Outermost: around [`Chained`](super::Chained), [`Fallback`](super::Fallback) and the other combinators. Inside of
/// them it would count their attempts. A layer emits events of its own, so do not use this limiter in a layer with the
/// same observer: each request would count twice.
///
/// `until_ready`, `LimitedStream` and `LimitedSink` ask again after a denial, and each ask counts.
#[derive(Clone, Debug)]
#[must_use]
pub struct Observed<L> {
    limiter: L,
    observers: Observers,
}

impl<L> Observed<L> {
    /// Wraps a limiter, whose decisions `observer` receives.
    pub fn new(limiter: L, observer: impl Observer + 'static) -> Self {
        Self { limiter, observers: Observers::default() }.observe(observer)
    }

    /// Adds an observer. Every added observer receives each event.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Returns the limiter inside, for operations that only its type has.
    pub const fn get_ref(&self) -> &L {
        &self.limiter
    }
}

impl<Key: ?Sized, L: Limiter<Key>> Limiter<Key> for Observed<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        match self.limiter.acquire(key, options).try_ready() {
            Ok(result) => {
                self.observers.emit(|| event_of(&result, None));
                LimiterFuture::ready(result.map(|outcome| observe_guard(outcome, &self.observers)))
            }
            Err(pending) => {
                // Emits the terminal event, also if the future is dropped.
                let mut guard = OutcomeGuard::new(&self.observers);
                guard.start_decision();
                let observers = self.observers.clone();
                pending.map_result(move |result| {
                    guard.finish_decision();
                    guard.finish(|elapsed| event_of(&result, elapsed));
                    result.map(|outcome| observe_guard(outcome, &observers))
                })
            }
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.limiter.peek(key, options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limiter.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.limiter.administer(key, operation)
    }
}

fn event_of(result: &Result<Outcome, Error>, elapsed: Option<std::time::Duration>) -> Event<'_> {
    match result {
        Ok(outcome) => Event::decided(&outcome.decision, elapsed),
        Err(error) => Event::failed(error, elapsed),
    }
}

fn observe_guard(outcome: Outcome, observers: &Observers) -> Outcome {
    let Outcome { decision, held: Some(held) } = outcome else { return outcome };
    let (settled, until_end) = held.split_observed(observers);
    Outcome { decision, held: Held::join(settled, until_end) }
}

impl Held {
    /// [Splits](Self::split) the guard. Both guards emit the events of their ends, and the second one also that it started.
    pub(crate) fn split_observed(self, observers: &Observers) -> (Option<Self>, Option<Self>) {
        let (settled, until_end) = self.split();
        if !observers.is_some() {
            return (settled, until_end);
        }
        let settled = settled.map(|held| {
            let observers = observers.clone();
            held.map_settle(move |held, actual| {
                observers.emit_settled(held.costs(), actual);
                held.settle(actual)
            })
        });
        let until_end = until_end.map(|held| {
            let (cost, started_at, observers) = (held.cost(), Instant::now(), observers.clone());
            observers.emit(|| Event::in_flight_started(cost));
            Self::until_end(cost, move || {
                observers.emit(|| Event::in_flight_ended(cost, started_at.elapsed()));
                held.release()
            })
        });
        (settled, until_end)
    }
}
