use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::book::LeaseBook;
use super::held_lease::HeldLease;
use super::ledger::{LeaseReply, LeaseReport};
use super::quota::LeasedQuota;
use crate::decision::LimitSnapshot;
use crate::error::Error;
use crate::store::inner::runtime;
use crate::store::redis::script::to_f64;

/// Queues reports. The client implements it.
pub(crate) trait LeaseTransport: Send + Sync {
    /// Sends a report. If that fails, the renewal is dropped, and so the task sends the report again.
    fn send(&self, renewal: LeaseRenewal);
}

impl LeaseBook {
    /// Makes sure that a task renews the leases. The task ends with its runtime, and then the next call starts another one.
    ///
    /// A task also stops if nothing drives its runtime: a runtime of one thread that is parked, or that runs only during
    /// `block_on`. If it has not run for a quarter of the duration, a call on another runtime takes over.
    pub(crate) fn ensure_task(self: &Arc<Self>, transport: &Weak<impl LeaseTransport + 'static>) {
        let (now, last) = (self.clock.now(), self.task.load(Ordering::Acquire));
        let ran_at = self.task_ran_at.load(Ordering::Relaxed);
        if ran_at > 0 && now < ran_at.saturating_add(4 * self.config.tick_micros()) {
            return;
        }
        let (Ok(runtime), true) = (Handle::try_current(), runtime::has_timer()) else { return };
        let number = last + 1;
        // Of several callers, one starts the task.
        if self.task.compare_exchange(last, number, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.task_ran_at.store(now.max(1), Ordering::Relaxed);
            // The reports of the last task may wait in its runtime, which sends nothing.
            self.give_up_reports();
            let transport: Weak<dyn LeaseTransport> = Weak::clone(transport) as Weak<dyn LeaseTransport>;
            *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime.clone());
            runtime.spawn(RenewalTask { book: Arc::clone(self), number }.run(transport));
        }
    }

    /// Releases all leases, and waits until Redis has confirmed that.
    ///
    /// # Errors
    ///
    /// If Redis confirms nothing for `limit`. The leases that remain expire.
    pub(crate) async fn release_all(
        self: &Arc<Self>,
        transport: &dyn LeaseTransport,
        limit: Duration,
    ) -> Result<(), Error> {
        self.close();
        let (mut deadline, mut fewest) = (Instant::now() + limit, usize::MAX);
        loop {
            self.take_due(true).into_iter().for_each(|renewal| transport.send(renewal));
            let left = self.len();
            if left == 0 {
                return Ok(());
            }
            if left < fewest {
                (deadline, fewest) = (Instant::now() + limit, left);
            }
            if Instant::now() >= deadline {
                return Err(Error::unavailable(format!(
                    "releasing leases failed: Redis did not reply within {limit:?}, so {left} leases expire; check the \
                     server"
                )));
            }
            let _ = timeout(Duration::from_millis(5), self.replied.notified()).await;
        }
    }

    /// Releases all leases, and waits for nothing.
    pub(crate) fn release_on_drop(self: &Arc<Self>, transport: &dyn LeaseTransport) {
        self.close();
        // After the reply to a report in flight, a dropped limiter sends no other report.
        self.give_up_reports();
        let runtime = Handle::try_current().ok();
        let runtime = runtime.or_else(|| self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let _entered = runtime.as_ref().map(Handle::enter);
        self.take_due(true).into_iter().for_each(|renewal| transport.send(renewal));
    }
}

/// The task that renews the leases of a limiter.
struct RenewalTask {
    book: Arc<LeaseBook>,
    number: u64,
}

impl RenewalTask {
    async fn run(self, transport: Weak<dyn LeaseTransport>) {
        let book = &self.book;
        let tick = Duration::from_micros(book.config.tick_micros());
        let mut next_tick = Instant::now() + tick;
        loop {
            let until_tick = next_tick.saturating_duration_since(Instant::now());
            let _ = timeout(until_tick, book.wake.notified()).await;
            let Some(transport) = transport.upgrade() else { return };
            if book.task.load(Ordering::Acquire) != self.number {
                return;
            }
            book.task_ran_at.store(book.clock.now().max(1), Ordering::Relaxed);
            let is_tick = Instant::now() >= next_tick;
            if is_tick {
                next_tick = Instant::now() + tick;
                if book.len() == 0 {
                    return;
                }
            }
            book.take_due(is_tick).into_iter().for_each(|renewal| transport.send(renewal));
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if self.book.task.load(Ordering::Acquire) == self.number {
            // If another task has begun since the comparison, the next call replaces it as well, which does no harm.
            self.book.task_ran_at.store(0, Ordering::Relaxed);
        }
    }
}

/// A report from its queueing to its reply. A renewal that is dropped before [`finish`](Self::finish) has failed, and
/// the task sends the report again.
pub(crate) struct LeaseRenewal {
    book: Arc<LeaseBook>,
    pub(super) slot: u32,
    pub(super) id: u64,
    pub(super) report: LeaseReport,
    /// The name of the key in Redis.
    pub(crate) key: Arc<[u8]>,
    pub(crate) quota: Arc<LeasedQuota>,
    is_finished: bool,
}

impl LeaseRenewal {
    pub(super) fn new(book: Arc<LeaseBook>, slot: u32, lease: &HeldLease, report: LeaseReport) -> Self {
        let (key, quota) = (Arc::clone(&lease.key), Arc::clone(&lease.quota));
        Self { book, slot, id: lease.id, report, key, quota, is_finished: false }
    }

    /// Returns the numbers to send.
    pub(crate) fn encode(&self) -> [f64; 7] {
        let LeaseReport { sequence, spent, unconfirmed, keep, want, expiry, .. } = self.report;
        [self.id, sequence, spent, unconfirmed, keep, want, expiry].map(to_f64)
    }

    /// Records the reply at a time of the server, with its figures for estimates.
    pub(crate) fn finish(mut self, reply: LeaseReply, server_time: u64, figures: Option<LimitSnapshot>) {
        self.is_finished = true;
        self.book.finish(&self, reply, server_time, figures);
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        if !self.is_finished {
            self.book.fail(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::sleep;

    use super::*;
    use crate::clock::{Clock as _, ManualClock};
    use crate::decision::AcquireOptions;
    use crate::encode::EncodeKey as _;
    use crate::store::redis::lease::demand::MIN_DECISIONS;
    use crate::store::redis::lease::demand_tests;

    const DURATION: Duration = Duration::from_millis(160);

    /// The reports that wait for the server.
    #[derive(Default)]
    struct Sent(Mutex<Vec<LeaseRenewal>>);

    impl LeaseTransport for Sent {
        fn send(&self, renewal: LeaseRenewal) {
            self.0.lock().expect("no panic").push(renewal);
        }
    }

    impl Sent {
        fn count(&self) -> usize {
            self.0.lock().expect("no panic").len()
        }

        /// The server answers at most so many reports.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number")]
        fn reply(&self, at_most: usize, now: u64) {
            let mut sent = self.0.lock().expect("no panic");
            let count = at_most.min(sent.len());
            let replied: Vec<_> = sent.drain(..count).collect();
            drop(sent);
            for report in replied {
                let held = report.encode()[5] as u64;
                let reply = LeaseReply::Applied { held, expiry: now + 1_000_000 };
                report.finish(reply, now, None);
            }
        }
    }

    fn book(clock: &ManualClock) -> Arc<LeaseBook> {
        demand_tests::book(clock, DURATION, &["user"])
    }

    /// Asks for a lease on a key.
    fn ask(book: &Arc<LeaseBook>, key: u64) {
        let parts = [book.part(0, AcquireOptions::default(), |hasher| key.hash_key(hasher))];
        for _ in 0..MIN_DECISIONS {
            book.count_demand(&parts, |limit| Some(([].into(), book.limits[limit].fixed.clone()?)));
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
    }

    /// A call makes sure that there is a task, and then its runtime runs for a time.
    fn call(runtime: &Runtime, book: &Arc<LeaseBook>, sent: &Arc<Sent>, then: Duration) {
        runtime.block_on(async {
            book.ensure_task(&Arc::downgrade(sent));
            sleep(then).await;
        });
    }

    /// The task runs while its runtime does. After a quarter of the duration without a run, another one takes over, and
    /// sends the report that the first one has left.
    #[test]
    fn parked_task_is_replaced_after_a_quarter_of_the_duration() {
        let (clock, sent, runtimes) = (ManualClock::new(), Arc::new(Sent::default()), [runtime(), runtime()]);
        let book = book(&clock);
        ask(&book, 1);
        clock.advance(DURATION / 2);
        call(&runtimes[0], &book, &sent, DURATION / 8);
        assert_eq!(sent.count(), 1, "the first runtime has sent a report");
        clock.advance((DURATION / 4).saturating_sub(Duration::from_micros(1)));
        call(&runtimes[1], &book, &sent, DURATION / 8);
        assert_eq!(sent.count(), 1, "the first task is not late");
        clock.advance(Duration::from_micros(1));
        call(&runtimes[1], &book, &sent, DURATION / 8);
        assert_eq!(sent.count(), 2, "the second one repeats the report");
        sent.reply(2, clock.now().as_micros());
        runtimes[0].block_on(async { sleep(DURATION).await });
        assert_eq!(runtimes[0].metrics().num_alive_tasks(), 0, "the first task ends when its runtime runs again");
        assert!(book.task_ran_at.load(Ordering::Relaxed) > 0, "and the second one goes on");
    }

    /// The release of many leases takes longer than the limit, which bounds only the time without a confirmation.
    #[test]
    fn close_of_16_000_leases_lasts_while_the_server_confirms() {
        const LIMIT: Duration = Duration::from_millis(100);
        let (clock, sent) = (ManualClock::new(), Arc::new(Sent::default()));
        let book = book(&clock);
        (0..16_000).for_each(|key| ask(&book, key));
        clock.advance(DURATION / 2);
        book.take_due(true).into_iter().for_each(|renewal| sent.send(renewal));
        assert!(sent.count() > 15_000, "{} leases", sent.count());
        sent.reply(usize::MAX, clock.now().as_micros());
        let close = |replies: usize| {
            let (server, clock) = (Arc::clone(&sent), clock.clone());
            runtime().block_on(async {
                let replying = tokio::spawn(async move {
                    loop {
                        sleep(Duration::from_millis(10)).await;
                        server.reply(replies, clock.now().as_micros());
                    }
                });
                let (began, result) = (Instant::now(), book.release_all(&*sent, LIMIT).await);
                replying.abort();
                (began.elapsed(), result)
            })
        };
        let (lasted, result) = close(0);
        assert!(result.is_err() && lasted >= LIMIT && lasted < LIMIT * 2, "{lasted:?}: {result:?}");
        let (lasted, result) = close(100);
        assert!(result.is_ok() && lasted > LIMIT * 10, "{lasted:?}: {result:?}");
        assert_eq!(book.len(), 0);
    }
}
