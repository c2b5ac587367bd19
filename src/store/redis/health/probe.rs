//! The probes of a server that does not answer: they close its breaker when it does again, with or without traffic.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::store::redis::client::config::Core;
use crate::store::redis::client::trade::Trade;
use crate::store::redis::health::circuit_breaker::Breaker;
use crate::store::redis::health::node::Lane;
use crate::store::redis::server::RedisServer;

/// Starts the task that probes a lane while its breaker is open, unless that task runs, or there is no tokio runtime.
pub(crate) fn start<T: Trade>(core: &Arc<Core<T>>, lane: &Arc<Lane>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if !lane.breaker.begin_probing() {
        return;
    }
    // Created before the task is spawned: a runtime that shuts down drops the task before the first poll.
    let probing = Probing(Arc::clone(lane));
    let core = Arc::downgrade(core);
    runtime.spawn(async move {
        let lane = Arc::clone(&probing.0);
        // Ends when the limiter is dropped.
        while let Some(core) = core.upgrade() {
            match timeout(RedisServer::CONNECT_WITHIN, probe(&core, &lane)).await {
                Ok(Ok(())) => {
                    // First: a breaker that opens again just now needs another task.
                    drop(probing);
                    core.succeeded(&lane);
                    return;
                }
                // This runtime can't connect. Another one may.
                Ok(Err(error)) if error.is_config() => return,
                _ => drop(core),
            }
            sleep(Breaker::PAUSE).await;
        }
    });
}

/// Drop guard of the probing task: if its runtime drops the task, another runtime may start one.
struct Probing(Arc<Lane>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.breaker.end_probing();
    }
}

/// Checks that a lane's server is reachable and takes writes, and prepares it for calls. Keeps the connection as the lane's
/// spare.
pub(crate) async fn probe<T: Trade>(core: &Core<T>, lane: &Lane) -> Result<(), Error> {
    // A node that has no slots any more is asked nothing: it may be gone.
    let Some((key, slot)) = core.server.probe_key(lane.index, &core.prefix) else { return Ok(()) };
    let connection = core.server.connect(lane.index).await.map_err(|failure| failure.error)?;
    let mut write = redis::cmd("SET");
    write.arg(key).arg("").arg("PX").arg(1);
    for command in [write, core.trade.trial(&core.prefix)] {
        if let Err(error) = connection.call(slot, Arc::new(command)).await {
            return Err(core.trade.explain(error).error);
        }
    }
    lane.keep_spare(connection);
    Ok(())
}
