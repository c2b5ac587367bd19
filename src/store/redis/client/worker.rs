//! The task that sends a line's parcels.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::store::redis::client::config::Core;
use crate::store::redis::client::dispatch::call;
use crate::store::redis::client::queue::Line;
use crate::store::redis::client::trade::{Parcel, Trade};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::health::node::Lane;

/// How many calls are under way at a time: so many that the server has always one to work on while others travel, and while
/// their senders are told. They arrive in the order in which they were sent.
const MAX_CALLS: usize = 4;

/// Sends a line's parcels until nobody uses the limiter any more.
pub(crate) fn drive<T: Trade>(
    core: Arc<Core<T>>,
    lane: Arc<Lane>,
    line: Arc<Line<T::Parcel>>,
) -> impl Future<Output = ()> + Send {
    // Made at once: a runtime that is shutting down drops the task before it was ever polled.
    let farewell = Farewell(Arc::clone(&line));
    async move {
        let _farewell = farewell;
        send_all(&core, &lane, &line).await;
    }
}

async fn send_all<T: Trade>(core: &Arc<Core<T>>, lane: &Arc<Lane>, line: &Line<T::Parcel>) {
    let mut connection = None;
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < MAX_CALLS && !line.is_empty() {
            if calls.is_empty() {
                connection = usable(connection, core, lane, line).await;
            }
            // Without a connection, calls that are under way fail by themselves, or else are worth waiting for.
            let Some(connection) = &connection else { break };
            let parcels = line.take();
            if !parcels.is_empty() {
                calls.push(call(core, lane, Arc::clone(connection), parcels));
            }
        }
        if calls.is_empty() {
            if line.is_closed() {
                return;
            }
            line.arrived().await;
            continue;
        }
        let wants_more = calls.len() < MAX_CALLS && connection.is_some();
        let breaks = if wants_more {
            match select(calls.next(), pin!(line.arrived())).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => continue,
            }
        } else {
            calls.next().await
        };
        if breaks == Some(true) {
            connection = None;
        }
    }
}

/// The connection that was used last, if it is still open; else another one.
///
/// A server may close what is idle, or restart. So an idle connection is checked before a call: what was never sent on a closed
/// connection is sent on another one, and nothing is ever sent twice.
async fn usable<T: Trade>(
    last: Option<Arc<dyn Connection>>,
    core: &Arc<Core<T>>,
    lane: &Arc<Lane>,
    line: &Line<T::Parcel>,
) -> Option<Arc<dyn Connection>> {
    for connection in [last, lane.take_spare()].into_iter().flatten() {
        if connection.is_open().await {
            return Some(connection);
        }
    }
    connect(core, lane, line).await
}

/// A new connection. Those who wait for it have their own deadlines.
async fn connect<T: Trade>(
    core: &Arc<Core<T>>,
    lane: &Arc<Lane>,
    line: &Line<T::Parcel>,
) -> Option<Arc<dyn Connection>> {
    let mut connecting = core.server.connect(lane.index);
    loop {
        let began = Instant::now();
        let error = match select(&mut connecting, pin!(sleep(core.deadline))).await {
            Either::Left((Ok(connection), _)) => return Some(Arc::from(connection)),
            Either::Left((Err(failure), _)) => {
                core.failed(lane, began, &failure.error);
                line.fail(&failure.error);
                return None;
            }
            Either::Right(_) => Error::unavailable(format!(
                "there was no connection to Redis ({}) within the deadline of {:?}",
                core.server.describe(),
                core.deadline
            )),
        };
        core.failed(lane, began, &error);
        line.forget_abandoned();
        // From here on it is for the probes to find Redis again: they bring a connection that works.
        if lane.breaker.check().is_err() {
            line.fail(&error);
            return None;
        }
    }
}

/// Drop guard of a line's task: all parcels of the line fail, and the next send starts another task.
struct Farewell<P: Parcel>(Arc<Line<P>>);

impl<P: Parcel> Drop for Farewell<P> {
    fn drop(&mut self) {
        self.0.die(&Error::unavailable(if std::thread::panicking() {
            "the call to Redis was lost: the task that sends calls panicked; report the panic's message"
        } else {
            "the call to Redis was lost: the runtime is shutting down; end all requests before their tokio runtime"
        }));
    }
}
