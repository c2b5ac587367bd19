//! A load on many keys during a fault of a cluster or of Sentinel's master.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, Limiter};

use crate::helpers::{LONG_DEADLINE, acquire};

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

/// Tasks that each decide for a key of their own.
pub(crate) struct Load {
    goes_on: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Sample>>,
}

impl Load {
    pub(crate) fn on(limiter: &(impl Limiter<str> + Clone)) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let mut tasks = JoinSet::new();
        for task in 0..KEYS {
            let (limiter, goes_on) = (limiter.clone(), Arc::clone(&goes_on));
            tasks.spawn(async move {
                let key = format!("key{task}");
                let mut samples = Vec::new();
                while goes_on.load(Ordering::SeqCst) {
                    let began = Instant::now();
                    let result = acquire(&limiter, key.as_str(), AcquireOptions::default()).await;
                    if let Err(error) = &result {
                        assert!(error.is_unavailable(), "{error:?}");
                    }
                    let (took, answered) = (began.elapsed(), result.is_ok());
                    let allowed = result.is_ok_and(|outcome| outcome.decision.is_allowed());
                    samples.push(Sample { key: key.clone(), began, took, answered, allowed });
                    sleep(Duration::from_millis(20)).await;
                }
                samples
            });
        }
        Self { goes_on, tasks }
    }

    /// Ends the load, prints a summary since the fault and returns all samples.
    pub(crate) async fn report(self, fault: &str, began: Instant) -> Vec<Sample> {
        self.goes_on.store(false, Ordering::SeqCst);
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

/// Waits until every key is decided again.
pub(crate) async fn all_answered(limiter: &impl Limiter<str>) {
    let deadline = Instant::now() + LONG_DEADLINE;
    for task in 0..KEYS {
        while acquire(limiter, format!("key{task}").as_str(), AcquireOptions::default()).await.is_err() {
            assert!(Instant::now() < deadline, "service does not resume for key{task}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
