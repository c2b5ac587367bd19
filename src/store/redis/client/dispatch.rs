//! One call: sends a batch of operations, and completes them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::batch::Batch;
use super::config::ClientConfig;
use super::operation::QueuedOperation;
use crate::clock::Clock;
use crate::error::Error;
use crate::store::redis::connect::{Connection, Failure};
use crate::store::redis::health::NodeState;

/// The time between two attempts while a cluster slot moves.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(5);

/// The reaction to TRYAGAIN. While a cluster slot moves, neither node has all keys of it, so both reject a command with
/// several keys. A command with one key is answered by one of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TryAgain {
    /// Fail: not a cluster.
    Fail,
    /// Send the batch again until the deadline. The server has run nothing of it.
    Wait,
    /// Return the operations, which are then sent one by one.
    Return,
}

/// Sends operations, and completes them. Returns whether the connection must be replaced.
pub(super) async fn execute(
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    connection: Arc<dyn Connection>,
    operations: Vec<QueuedOperation>,
) -> bool {
    let health = &config.health;
    let started_at = Instant::now();
    let deadline = started_at + config.deadline;
    let (size, measured_from) = (operations.len(), health.observers.is_some().then(std::time::Instant::now));
    let results: Vec<Option<Failure>> = if health.server.is_cluster() {
        let slots = group_by_slot(operations).into_iter();
        join_all(slots.map(|(slot, operations)| send_to_slot(config, &*connection, slot, operations, deadline))).await
    } else {
        let batch = new_batch(config, operations);
        vec![send(config, &*connection, 0, batch, deadline, TryAgain::Fail).await.0]
    };
    record_results(config, node, &results, (size, measured_from), started_at);
    results.iter().flatten().any(|failure| failure.reconnect)
}

/// Reports a call to observers and to the circuit breaker.
fn record_results(
    config: &ClientConfig,
    node: &Arc<NodeState>,
    results: &[Option<Failure>],
    (size, measured_from): (usize, Option<std::time::Instant>),
    started_at: Instant,
) {
    let health = &config.health;
    health.record_call(size, measured_from, results.iter().flatten().next().map(|failure| &failure.error));
    if results.iter().any(Option::is_none) {
        health.record_success(node);
    } else if let Some(failure) = results.iter().flatten().find(|failure| !failure.server_responded) {
        health.record_failure(node, started_at, &failure.error);
    }
}

/// Groups operations by cluster slot, because the keys of one command must share a slot. Each group keeps its order.
fn group_by_slot(operations: Vec<QueuedOperation>) -> Vec<(u16, Vec<QueuedOperation>)> {
    let mut operations: Vec<_> = operations.into_iter().map(|operation| (operation.slot(), operation)).collect();
    // The sort is stable.
    operations.sort_by_key(|(slot, _)| *slot);
    let mut groups: Vec<(u16, Vec<QueuedOperation>)> = Vec::new();
    for (slot, operation) in operations {
        match groups.last_mut() {
            Some((last, group)) if *last == slot => group.push(operation),
            _ => groups.push((slot, vec![operation])),
        }
    }
    groups
}

/// Sends the operations of one slot: together, or one by one if the slot moves.
async fn send_to_slot(
    config: &ClientConfig,
    connection: &dyn Connection,
    slot: u16,
    operations: Vec<QueuedOperation>,
    deadline: Instant,
) -> Option<Failure> {
    let try_again = if operations.len() > 1 { TryAgain::Return } else { TryAgain::Wait };
    let batch = new_batch(config, operations);
    let (mut failure, returned) = send(config, connection, slot, batch, deadline, try_again).await;
    for operation in returned {
        // The caller of a failed operation relies on it not being charged later.
        if operation.is_cancelled() || Instant::now() >= deadline {
            operation.complete(Err(Error::unavailable(
                "the call to Redis failed: a cluster slot was still moving at the deadline; retry later",
            )));
            continue;
        }
        let batch = new_batch(config, vec![operation]);
        failure = send(config, connection, slot, batch, deadline, TryAgain::Wait).await.0.or(failure);
    }
    failure
}

fn new_batch(config: &ClientConfig, operations: Vec<QueuedOperation>) -> Batch {
    Batch::new(operations, &config.limits, &config.holds, config.clock.as_ref().map(Clock::now))
}

/// Sends a batch, and completes its operations. Returned operations were not run.
async fn send(
    config: &ClientConfig,
    connection: &dyn Connection,
    slot: u16,
    batch: Batch,
    deadline: Instant,
    try_again: TryAgain,
) -> (Option<Failure>, Vec<QueuedOperation>) {
    let call = async {
        loop {
            match call_script(config, connection, slot, &batch).await {
                Err(error) if is_try_again(&error) && try_again == TryAgain::Wait => sleep(TRYAGAIN_DELAY).await,
                result => return result,
            }
        }
    };
    let failure = match timeout_at(deadline, call).await {
        Ok(Ok(reply)) => {
            let failure = batch.complete(&config.limits, &reply).err().map(Failure::server_responded);
            return (failure, Vec::new());
        }
        Ok(Err(error)) if is_try_again(&error) && try_again == TryAgain::Return => {
            return (None, batch.into_operations());
        }
        Ok(Err(error)) => Failure::from_redis(error),
        Err(_) => Failure::timed_out(config.timeout_message()),
    };
    for operation in batch.into_operations() {
        operation.complete(Err(failure.error.clone()));
    }
    (Some(failure), Vec::new())
}

/// Sends a batch once, or a second time if the server replied that it did not run the first.
async fn call_script(
    config: &ClientConfig,
    connection: &dyn Connection,
    slot: u16,
    batch: &Batch,
) -> Result<Value, RedisError> {
    match connection.call(slot, Arc::new(batch.command(&config.script, true))).await {
        // A restart, a fail-over or SCRIPT FLUSH empties the script cache. EVAL runs and caches the script in one round
        // trip.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connection.call(slot, Arc::new(batch.command(&config.script, false))).await
        }
        reply => reply,
    }
}

fn is_try_again(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}
