//! One call: sends a batch of operations, and completes them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::batch::{Batch, LatestStart, ScriptRun};
use super::completion::Completion;
use super::config::ClientConfig;
use super::operation::{OperationKind, QueuedOperation};
use crate::clock::Clock;
use crate::error::Error;
use crate::observe::ShedCause;
use crate::store::redis::connect::{Connection, Failure};
use crate::store::redis::health::NodeState;

/// The time between two attempts while a cluster slot moves.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(5);

/// A call without a reply is given up after this many deadlines. Its callers have gone after one deadline. A late reply
/// shows that the connection works, and how long a call takes.
const GIVE_UP_AFTER: u32 = 2;

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

/// The end of a call.
pub(super) struct CallEnd {
    pub(super) must_reconnect: bool,
    /// The server has replied without an error.
    pub(super) replied: bool,
    /// `None` in a cluster, whose nodes have a clock each.
    pub(super) run: Option<ScriptRun>,
}

/// The connection that a call uses.
struct Route<'a> {
    config: &'a ClientConfig,
    node: &'a Arc<NodeState>,
    connection: &'a dyn Connection,
    sent_at: Instant,
}

impl Route<'_> {
    fn deadline(&self) -> Instant {
        self.sent_at + self.config.deadline
    }
}

/// Sends operations, and completes them. The script makes no decisions after `latest_start`.
pub(super) async fn execute(
    config: &Arc<ClientConfig>,
    node: &Arc<NodeState>,
    connection: Arc<dyn Connection>,
    operations: Vec<QueuedOperation>,
    latest_start: Option<LatestStart>,
) -> CallEnd {
    let health = &config.health;
    let route = Route { config, node, connection: &*connection, sent_at: Instant::now() };
    let (size, measured_from) = (operations.len(), health.observers.is_some().then(std::time::Instant::now));
    let results: Vec<Result<Option<ScriptRun>, Failure>> = if health.server.is_cluster() {
        let slots = group_by_slot(operations).into_iter();
        join_all(slots.map(|(slot, operations)| send_to_slot(&route, slot, operations))).await
    } else if let Some(OperationKind::Command(_)) = operations.first().map(|operation| &operation.kind) {
        send_commands(&route, operations).await
    } else {
        match new_batch(config, operations, latest_start) {
            Some(batch) => vec![send(&route, 0, batch, TryAgain::Fail).await.0],
            None => Vec::new(),
        }
    };
    record_results(&route, &results, (size, measured_from));
    CallEnd {
        must_reconnect: results.iter().any(|result| result.as_ref().is_err_and(|failure| failure.reconnect)),
        replied: results.iter().any(Result::is_ok),
        run: if health.server.is_cluster() { None } else { results.into_iter().find_map(Result::ok).flatten() },
    }
}

/// Reports a call to observers and to the circuit breaker.
fn record_results(
    route: &Route<'_>,
    results: &[Result<Option<ScriptRun>, Failure>],
    (size, measured_from): (usize, Option<std::time::Instant>),
) {
    let health = &route.config.health;
    let failures = || results.iter().filter_map(|result| result.as_ref().err());
    health.record_call(size, measured_from, failures().next().map(|failure| &failure.error));
    let late = results.iter().flatten().flatten().map(|run| run.late).sum();
    health.record_shed(ShedCause::ArrivedLate, late);
    let failed = failures().find(|failure| !failure.server_responded).filter(|_| results.iter().all(Result::is_err));
    health.record_end(route.node, route.sent_at, failed);
}

/// Groups operations by cluster slot, because the keys of one command must share a slot. Each group keeps its order.
fn group_by_slot(operations: Vec<QueuedOperation>) -> Vec<(u16, Vec<QueuedOperation>)> {
    let mut operations: Vec<_> = operations.into_iter().map(|operation| (operation.target.slot(), operation)).collect();
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
    route: &Route<'_>,
    slot: u16,
    operations: Vec<QueuedOperation>,
) -> Result<Option<ScriptRun>, Failure> {
    let try_again = if operations.len() > 1 { TryAgain::Return } else { TryAgain::Wait };
    let Some(batch) = new_batch(route.config, operations, None) else { return Ok(None) };
    let (mut result, returned) = send(route, slot, batch, try_again).await;
    if let Ok(Some(run)) = &mut result {
        // The calls to other slots may take longer.
        run.answers.complete(usize::MAX);
    }
    for mut operation in returned {
        operation.is_second = true;
        // The caller of a failed operation relies on it not being charged later.
        if operation.is_cancelled() || Instant::now() >= route.deadline() {
            operation.complete(Err(Error::unavailable(
                "the call to Redis failed: a cluster slot was still moving at the deadline; retry later",
            )));
            continue;
        }
        let Some(batch) = new_batch(route.config, vec![operation], None) else { continue };
        // For observers and the breaker an error of one counts for all. Each operation has its own result.
        result = send(route, slot, batch, TryAgain::Wait).await.0.and(result);
    }
    result
}

/// Returns `None` if there is no operation. In a box, because the future of a call would contain the batch three times.
/// Benchmark: `redis instructions`, one caller.
fn new_batch(
    config: &ClientConfig,
    operations: Vec<QueuedOperation>,
    latest_start: Option<LatestStart>,
) -> Option<Box<Batch>> {
    let (now, limits) = (config.clock.as_ref().map(Clock::now), Arc::clone(&operations.first()?.target.limits));
    Some(Box::new(Batch::new(limits, operations, &config.holds, now, latest_start)))
}

/// Sends a batch, and completes its operations. Returns the run of the script, and operations that were not run.
async fn send(
    route: &Route<'_>,
    slot: u16,
    batch: Box<Batch>,
    try_again: TryAgain,
) -> (Result<Option<ScriptRun>, Failure>, Vec<QueuedOperation>) {
    let config = route.config;
    let calling = async {
        loop {
            match call_script(route, slot, &batch).await {
                Err(error)
                    if is_try_again(&error) && try_again == TryAgain::Wait && Instant::now() < route.deadline() =>
                {
                    sleep(TRYAGAIN_DELAY).await;
                }
                result => return result,
            }
        }
    };
    let failure = match until_given_up(route, calling).await {
        Some(Ok((reply, sent_at))) => {
            batch.limits.set_loaded();
            let run = batch.complete(&reply, sent_at).map(Some);
            return (run.map_err(Failure::server_responded), Vec::new());
        }
        Some(Err(error)) if is_try_again(&error) && try_again == TryAgain::Return => {
            // Nothing failed: the caller sends these operations one by one.
            return (Ok(None), batch.into_operations());
        }
        Some(Err(error)) => Failure::of("the call", error, config.health.server.describe()),
        None => Failure::unusable(Error::unavailable(config.timeout_message())),
    };
    for operation in batch.into_operations() {
        operation.fail(&failure);
    }
    (Err(failure), Vec::new())
}

/// Sends the operations' commands, and completes each operation with its reply. Returns a result for each reply.
async fn send_commands(
    route: &Route<'_>,
    mut operations: Vec<QueuedOperation>,
) -> Vec<Result<Option<ScriptRun>, Failure>> {
    let mut commands = Pipeline::with_capacity(operations.len());
    for operation in &mut operations {
        if let OperationKind::Command(command) = &mut operation.kind {
            commands.add_command(std::mem::take(command));
        }
    }
    let failed = |error| Failure::of("the call", error, route.config.health.server.describe());
    let failure = match until_given_up(route, route.connection.call_all(commands)).await {
        Some(Ok(replies)) => {
            let complete = |(operation, reply): (QueuedOperation, Value)| {
                match reply.extract_error().map_err(failed) {
                    Ok(reply) => operation.complete(Ok(Completion::Replied(reply))),
                    Err(failure) => {
                        operation.fail(&failure);
                        return Err(failure);
                    }
                }
                Ok(None)
            };
            return operations.into_iter().zip(replies).map(complete).collect();
        }
        Some(Err(error)) => failed(error),
        None => Failure::unusable(Error::unavailable(route.config.timeout_message())),
    };
    for operation in operations {
        operation.fail(&failure);
    }
    vec![Err(failure)]
}

/// Waits for the reply of a call. Returns `None` if no reply comes.
async fn until_given_up<T>(
    route: &Route<'_>,
    call: impl Future<Output = Result<T, RedisError>>,
) -> Option<Result<T, RedisError>> {
    let (config, mut call) = (route.config, pin!(call));
    if let Ok(reply) = timeout_at(route.deadline(), &mut call).await {
        return Some(reply);
    }
    // The breaker counts the call now. A late reply resets the count.
    config.health.record_failure(route.node, route.sent_at, &Error::unavailable(config.timeout_message()));
    let given_up_at = route.sent_at + config.deadline * GIVE_UP_AFTER;
    timeout_at(given_up_at, call).await.ok()
}

/// Sends a batch once, or a second time if the server replied that it did not run the first, and has charged nothing.
/// Returns the reply, and when the command was sent that it answers: only that command shows how long a call takes.
///
/// A script that no server has run is sent as text at once. So the first decision, and the first one after a replacement of
/// the limits, takes one round trip.
async fn call_script(route: &Route<'_>, slot: u16, batch: &Batch) -> Result<(Value, Instant), RedisError> {
    let Route { connection, config, .. } = *route;
    let command = |by_hash| Arc::new(batch.command(by_hash, &config.server_clock));
    let mut sent_at = Instant::now();
    let mut reply = connection.call(slot, command(batch.limits.is_loaded())).await;
    // A restart, a fail-over or SCRIPT FLUSH empties the script cache. EVAL runs and caches the script in one round trip.
    if reply.as_ref().is_err_and(is_missing_script) {
        sent_at = Instant::now();
        reply = connection.call(slot, command(false)).await;
    }
    if let Some(server_time) = reply.as_ref().ok().and_then(|reply| batch.other_server_time(reply)) {
        config.server_clock.set(server_time);
        sent_at = Instant::now();
        reply = connection.call(slot, command(true)).await;
    }
    Ok((reply?, sent_at))
}

fn is_missing_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn is_try_again(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}
