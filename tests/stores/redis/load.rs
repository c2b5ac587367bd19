//! A load on many keys during a fault of a server, of a cluster or of Sentinel's master.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, BoxLimiter, Limiter};

use crate::helpers::{LONG_DEADLINE, acquire};

/// A call of a fault fails after this time. Whether calls are answered in this time depends on the machine.
pub(crate) const DEADLINE: Duration = Duration::from_millis(200);

const KEYS: usize = 48;

/// One decision under load.
pub(crate) struct Sample {
    pub(crate) key: String,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    pub(crate) answered: bool,
    pub(crate) allowed: bool,
}

/// Tasks that each decide for a key of their own, until the load ends.
pub(crate) struct Load {
    state: Arc<State>,
    tasks: JoinSet<Vec<Sample>>,
}

#[derive(Default)]
struct State {
    has_ended: AtomicBool,
    /// The number of questions whether decisions succeed, and the last one that a later decision has answered.
    asked: AtomicUsize,
    answered: AtomicUsize,
    failed: AtomicUsize,
}

impl Load {
    pub(crate) fn on(limiter: &(impl Limiter<str> + Clone)) -> Self {
        let (limiter, state, mut tasks) = (BoxLimiter::new(limiter.clone()), Arc::<State>::default(), JoinSet::new());
        for task in 0..KEYS {
            tasks.spawn(decide(limiter.clone(), format!("key{task}"), Arc::clone(&state)));
        }
        Self { state, tasks }
    }

    /// Waits until a decision succeeds that starts from now on.
    pub(crate) async fn until_answered(&self, what: &str) {
        let question = self.state.asked.fetch_add(1, Ordering::SeqCst) + 1;
        until(what, async || self.state.answered.load(Ordering::SeqCst) >= question).await;
    }

    pub(crate) fn failed(&self) -> usize {
        self.state.failed.load(Ordering::SeqCst)
    }

    /// Waits until a fault has let another decision fail.
    pub(crate) async fn until_failed(&self, fault: &str) {
        let before = self.failed();
        until(fault, async || self.failed() > before).await;
    }

    /// Ends the load, prints a summary since the fault and returns all samples.
    pub(crate) async fn report(self, fault: &str, began: Instant) -> Vec<Sample> {
        self.state.has_ended.store(true, Ordering::SeqCst);
        let samples: Vec<_> = self.tasks.join_all().await.into_iter().flatten().collect();
        let failed = samples.iter().filter(|sample| !sample.answered);
        let resumed =
            failed.clone().map(|sample| sample.began + sample.took).max().map_or(Duration::ZERO, |at| at - began);
        let slowest = samples.iter().map(|sample| sample.took).max().expect("a load");
        println!(
            "| {fault:<40} | sent {:>6} | failed {:>6} | slowest {slowest:>8.1?} | last failure after {resumed:>8.1?} |",
            samples.len(),
            failed.count()
        );
        samples
    }
}

async fn decide(limiter: BoxLimiter<str>, key: String, state: Arc<State>) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !state.has_ended.load(Ordering::SeqCst) {
        let (began, question) = (Instant::now(), state.asked.load(Ordering::SeqCst));
        let result = acquire(&limiter, key.as_str(), AcquireOptions::default()).await;
        if let Err(error) = &result {
            assert!(error.is_unavailable(), "{error:?}");
            state.failed.fetch_add(1, Ordering::SeqCst);
        } else {
            state.answered.fetch_max(question, Ordering::SeqCst);
        }
        let (took, answered) = (began.elapsed(), result.is_ok());
        let allowed = result.is_ok_and(|outcome| outcome.decision.is_allowed());
        samples.push(Sample { key: key.clone(), began, took, answered, allowed });
        sleep(Duration::from_millis(20)).await;
    }
    samples
}

/// Waits for a state.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + LONG_DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the limiter answers a request of this cost.
pub(crate) async fn answered<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) {
    until("an answer", async || acquire(limiter, key, AcquireOptions::cost(cost)).await.is_ok()).await;
}

/// Waits until every key is decided again.
pub(crate) async fn all_answered(limiter: &impl Limiter<str>) {
    for task in 0..KEYS {
        answered(limiter, format!("key{task}").as_str(), 1).await;
    }
}
