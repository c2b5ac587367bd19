//! One call: sends parcels together, and answers them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::Error;
use crate::store::redis::client::config::Core;
use crate::store::redis::client::trade::{Parcel, Trade};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::health::node::Lane;
use crate::store::redis::server::RedisServer;

/// How long to wait before asking again where a slot is on its way.
const MOVING: Duration = Duration::from_millis(5);

/// Sends parcels, and answers them. Returns whether the connection is of no use any more.
pub(crate) async fn call<T: Trade>(
    core: &Arc<Core<T>>,
    lane: &Arc<Lane>,
    connection: Arc<dyn Connection>,
    parcels: Vec<T::Parcel>,
) -> bool {
    let began = Instant::now();
    let until = began + core.deadline;
    let (count, measured) = (parcels.len(), core.observers.is_some().then(std::time::Instant::now));
    let ended = if core.server.is_cluster() {
        let slots = by_slot(parcels).into_iter();
        join_all(slots.map(|(slot, parcels)| send_in_slot(core, &*connection, slot, parcels, until))).await
    } else {
        let batch = core.trade.batch(parcels);
        vec![send(core, &*connection, 0, batch, until, Moving::IsAnError).await.0]
    };
    core.called(count, measured, ended.iter().flatten().next().map(|failure| &failure.error));
    if ended.iter().any(Option::is_none) {
        core.succeeded(lane);
    } else if let Some(failure) = ended.iter().flatten().find(|failure| !failure.answered) {
        core.failed(lane, began, &failure.error);
    }
    ended.iter().flatten().any(|failure| failure.breaks)
}

/// The parcels of each slot, in the order in which they came.
fn by_slot<P: Parcel>(parcels: Vec<P>) -> Vec<(u16, Vec<P>)> {
    let mut parcels: Vec<_> = parcels.into_iter().map(|parcel| (parcel.slot(), parcel)).collect();
    // Those of a slot stay in order.
    parcels.sort_by_key(|(slot, _)| *slot);
    let mut groups: Vec<(u16, Vec<P>)> = Vec::new();
    for (slot, parcel) in parcels {
        match groups.last_mut() {
            Some((last, group)) if *last == slot => group.push(parcel),
            _ => groups.push((slot, vec![parcel])),
        }
    }
    groups
}

/// While a slot moves from node to node, what asks for several keys is answered by neither: then they are asked one by one.
async fn send_in_slot<T: Trade>(
    core: &Core<T>,
    connection: &dyn Connection,
    slot: u16,
    parcels: Vec<T::Parcel>,
    until: Instant,
) -> Option<Failure> {
    let moving = if parcels.len() > 1 { Moving::GivesThemBack } else { Moving::Waits };
    let batch = core.trade.batch(parcels);
    let (mut failure, back) = send(core, connection, slot, batch, until, moving).await;
    for parcel in back {
        // Who was told that it failed is not charged.
        if parcel.is_abandoned() || Instant::now() >= until {
            parcel.answer(Err(Error::unavailable("a slot of the Redis cluster did not get to its new node in time")));
            continue;
        }
        let batch = core.trade.batch(vec![parcel]);
        failure = send(core, connection, slot, batch, until, Moving::Waits).await.0.or(failure);
    }
    failure
}

/// What to do about TRYAGAIN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moving {
    IsAnError,
    Waits,
    GivesThemBack,
}

/// Sends a batch and answers all in it; what it gives back was not done.
async fn send<T: Trade>(
    core: &Core<T>,
    connection: &dyn Connection,
    slot: u16,
    batch: T::Batch,
    until: Instant,
    moving: Moving,
) -> (Option<Failure>, Vec<T::Parcel>) {
    let exchange = async {
        loop {
            let result = core.trade.exchange(connection, slot, &batch).await;
            match result {
                Err(error) if is_moving(&error) && moving == Moving::Waits => sleep(MOVING).await,
                result => return result,
            }
        }
    };
    let failure = match timeout_at(until, exchange).await {
        Ok(Ok(reply)) => return (core.trade.answer(batch, reply).err(), Vec::new()),
        Ok(Err(error)) if is_moving(&error) && moving == Moving::GivesThemBack => return (None, T::parcels(batch)),
        Ok(Err(error)) => core.trade.explain(error),
        Err(_) => Failure::timed_out(late(&core.server, core.deadline)),
    };
    for parcel in T::parcels(batch) {
        parcel.answer(Err(failure.error.clone()));
    }
    (Some(failure), Vec::new())
}

fn is_moving(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}

/// What is said of a call that took too long.
pub(crate) fn late(server: &RedisServer, deadline: Duration) -> String {
    format!(
        "Redis ({}) did not answer within the deadline of {deadline:?}; what was asked may have been charged",
        server.describe()
    )
}
