use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::book::LeaseBook;
use super::renewal::LeaseRenewal;
use crate::error::Error;
use crate::runtime;

/// Queues reports. The client implements it.
pub(crate) trait LeaseTransport: Send + Sync {
    /// Sends a report. If that fails, the renewal is dropped, and so the task sends the report again.
    fn send(&self, renewal: LeaseRenewal);
}

impl LeaseBook {
    /// Makes sure that a task renews the leases. It ends with its runtime, and then the next call starts another one.
    pub(crate) fn ensure_task(self: &Arc<Self>, transport: &Weak<impl LeaseTransport + 'static>) {
        if self.has_task.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(runtime), true) = (Handle::try_current(), runtime::has_timer()) else { return };
        if !self.has_task.swap(true, Ordering::AcqRel) {
            let transport: Weak<dyn LeaseTransport> = Weak::clone(transport) as Weak<dyn LeaseTransport>;
            runtime.spawn(RenewalTask(Arc::clone(self)).run(transport));
        }
    }

    /// Releases all leases, and waits until Redis has confirmed that, for at most `limit`.
    ///
    /// # Errors
    ///
    /// If Redis has not confirmed it by then. The leases that remain expire.
    pub(crate) async fn release_all(
        self: &Arc<Self>,
        transport: &dyn LeaseTransport,
        limit: Duration,
    ) -> Result<(), Error> {
        self.close();
        let deadline = Instant::now() + limit;
        loop {
            self.take_due(true).into_iter().for_each(|renewal| transport.send(renewal));
            if self.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::unavailable(format!(
                    "releasing leases failed: Redis did not reply within {limit:?}, so the leases expire; check the server"
                )));
            }
            self.replied(Duration::from_millis(5)).await;
        }
    }

    /// Releases all leases, and waits for nothing.
    pub(crate) fn release_on_drop(self: &Arc<Self>, transport: &dyn LeaseTransport) {
        self.close();
        // After the reply to a report in flight, a dropped limiter sends no other report.
        self.give_up_reports();
        self.take_due(true).into_iter().for_each(|renewal| transport.send(renewal));
    }
}

/// The task that renews the leases of a limiter.
struct RenewalTask(Arc<LeaseBook>);

impl RenewalTask {
    async fn run(self, transport: Weak<dyn LeaseTransport>) {
        let book = &self.0;
        let tick = Duration::from_micros(book.terms.tick());
        let mut next_tick = Instant::now() + tick;
        loop {
            let until_tick = next_tick.saturating_duration_since(Instant::now());
            let _ = timeout(until_tick, book.wake.notified()).await;
            let Some(transport) = transport.upgrade() else { return };
            let is_tick = Instant::now() >= next_tick;
            if is_tick {
                next_tick = Instant::now() + tick;
                if book.is_empty() {
                    return;
                }
            }
            book.take_due(is_tick).into_iter().for_each(|renewal| transport.send(renewal));
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.0.has_task.store(false, Ordering::Release);
    }
}
