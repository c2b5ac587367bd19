use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Id;
use tokio::time::sleep;

use super::registry::{HoldRegistry, HoldTransport};
use super::visit::SessionDue;

/// The task of one runtime that renews the sessions of a limiter, and sends the settlements that were not sent.
///
/// Each runtime that holds costs has such a task, because a runtime may be parked. The tasks share one schedule.
pub(super) struct RenewalTask {
    pub(super) registry: Arc<HoldRegistry>,
    pub(super) runtime: Id,
}

impl RenewalTask {
    /// The maximum number of updates in flight. Further sessions wait in the schedule.
    const MAX_IN_FLIGHT: usize = 10_000;
    const MIN_PAUSE: Duration = Duration::from_millis(5);

    pub(super) async fn run(self, transport: Arc<dyn HoldTransport>) {
        // Each update has a clone until it ends.
        let (in_flight, mut pause) = (Arc::new(()), Self::MIN_PAUSE);
        loop {
            sleep(pause).await;
            let room = Self::MAX_IN_FLIGHT.saturating_sub(Arc::strong_count(&in_flight) - 1);
            let Some((due, until_next)) = self.registry.take_due(self.runtime, room) else { return };
            for (session, due) in due {
                match due {
                    SessionDue::Charge(cost) => {
                        // Tried once: a charge without a reply may have been applied, and a second one could charge
                        // twice.
                        if let Ok(reply) = transport.send_charge(&session, cost) {
                            // A charge whose future is dropped is not sent.
                            tokio::spawn(reply);
                        }
                    }
                    SessionDue::Update => drop(self.registry.send_update(&*transport, &session, Some(&in_flight))),
                }
            }
            // Work that becomes due earlier waits for at most a tick.
            pause = until_next.clamp(Self::MIN_PAUSE, self.registry.tick());
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.registry.end_task(self.runtime);
    }
}
