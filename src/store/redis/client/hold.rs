//! Holds, and the guards that settle them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use tokio::sync::oneshot;

use super::completion::{Completion, OperationResult};
use super::future::reply_lost;
use super::once::OnceRequest;
use super::operation::{OperationKind, OperationTarget, QueuedOperation};
use super::{Client, no_runtime};
use crate::decision::Costs;
use crate::error::Error;
use crate::limiter::{Held, LimiterFuture, Outcome};
use crate::store::inner::BoxFuture;
use crate::store::inner::runtime::{Sleep, sleep};
use crate::store::inner::{capacity_released, limit_id};
use crate::store::redis::holds::{
    Grant, GrantedHold, HoldRegistry, HoldTransport, Session, SessionTarget, SessionUpdate,
};
use crate::store::redis::script::{Operation, group_by_limits};

impl Client {
    /// Queues a hold, and once more in a new session if the server does not know the session of the first.
    pub(crate) fn submit_hold(
        self: &Arc<Self>,
        operation: impl Fn(oneshot::Sender<OperationResult>) -> Result<QueuedOperation, Error> + Send + 'static,
    ) -> Result<LimiterFuture<Outcome>, Error> {
        let timer = sleep(self.config.deadline).ok_or_else(no_runtime)?;
        let answer_by = Some(timer.deadline());
        let first = self.enqueue(&operation, answer_by)?;
        let client = Arc::clone(self);
        let hold = async move {
            match first.await.map_err(|_| reply_lost())?? {
                // Nothing is held: the server has lost the session.
                Completion::SessionExpired => {
                    let second = client.enqueue(&operation, answer_by)?.await.map_err(|_| reply_lost())??;
                    into_outcome(&client, second)
                }
                completion => into_outcome(&client, completion),
            }
        };
        let config = Arc::clone(&self.config);
        Ok(until_deadline(hold, timer, move || {
            format!(
                "hold failed: Redis ({}) did not reply within the deadline of {:?}, and the cost may stay held until \
                 the hold expires; raise `deadline` or check the server",
                config.health.server.describe(),
                config.deadline
            )
        }))
    }
}

/// Returns a decision that fails with this message at the deadline.
///
/// Dropping `decided` cancels an operation that was not sent. Otherwise the grant in its reply is dropped, and releases
/// the cost.
pub(super) fn until_deadline(
    decided: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    timer: Sleep,
    message: impl FnOnce() -> String + Send + 'static,
) -> LimiterFuture<Outcome> {
    LimiterFuture::pending(async move {
        match select(pin!(decided), pin!(timer)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(Error::unavailable(message())),
        }
    })
}

pub(super) fn into_outcome(client: &Arc<Client>, completion: Completion) -> Result<Outcome, Error> {
    match completion {
        Completion::Decided(decision, grant) => {
            Ok(Outcome::of_store(decision, grant.and_then(|grant| into_guard(client, grant, None))))
        }
        Completion::SessionExpired | Completion::Repeated(_) | Completion::Done => {
            Err(Error::unavailable("hold failed: Redis has lost the process's session on the key twice; retry"))
        }
    }
}

/// Returns the guard of what was granted. Its settlement records what it charges for `request`, if there is one.
pub(super) fn into_guard(client: &Arc<Client>, grant: Grant, request: Option<OnceRequest>) -> Option<Held> {
    let (is_hold, costs, registry) = (grant.is_hold, *grant.costs, Arc::clone(grant.registry()));
    let units = grant.units.clone();
    let (until_end, holds): (Vec<_>, Vec<_>) = grant.into_holds().into_iter().partition(|hold| hold.until_end);
    let until_end = until_end.iter().map(|hold| hold.held).max().map(|cost| {
        let (client, registry) = (Arc::clone(client), Arc::clone(&registry));
        Held::until_end(cost, move || settle(&client, &registry, &until_end, |_| 0))
    });
    if !is_hold {
        return until_end;
    }
    let (fixed, of_request): (Vec<_>, Vec<_>) = holds.into_iter().partition(|hold| hold.is_fixed);
    let of_fixed = (Arc::clone(client), Arc::clone(&registry));
    let client = Arc::clone(client);
    let settle_request = move |actual: Costs| {
        let settled = settle(&client, &registry, &of_request, |hold| hold.actual(&actual));
        match request {
            None => settled,
            // Without the record, a repeat is charged.
            Some(request) => settled.and(request.record(&client, &actual).map_result(|_| Ok(()))),
        }
    };
    let mut held = Held::of_limits(costs, units, settle_request);
    if !fixed.is_empty() {
        let (client, registry) = of_fixed;
        held = held.with_fixed_costs(move |charge| {
            settle(&client, &registry, &fixed, |hold| if charge { hold.held } else { 0 })
        });
    }
    Held::join(Some(held), until_end)
}

/// Settles each hold with its actual cost.
fn settle(
    client: &Arc<Client>,
    registry: &Arc<HoldRegistry>,
    holds: &[GrantedHold],
    actual: impl Fn(&GrantedHold) -> u64,
) -> LimiterFuture<()> {
    let (mut sessions, mut charges) = (Vec::new(), Vec::new());
    for hold in holds {
        let (session, actual) = (Arc::clone(&hold.session), actual(hold));
        if hold.held > 0 {
            hold.settle(actual);
            registry.track(&hold.session);
            sessions.push(session);
        } else if actual > 0 {
            // A hold of 0 has no session, so the server cannot recognise a repeated charge: it is sent once.
            charges.push((session, actual));
        }
    }
    let updated = (!sessions.is_empty()).then(|| registry.send_update(&**client, &sessions, None));
    let charged = (!charges.is_empty()).then(|| client.send_charge(&charges));
    let deadline = client.config.deadline;
    let confirmed = |reply: Option<Result<BoxFuture<Result<(), Error>>, Error>>| match reply {
        None => LimiterFuture::ready(Ok(())),
        Some(Err(error)) => LimiterFuture::ready(Err(not_confirmed(error))),
        Some(Ok(reply)) => LimiterFuture::pending(async move { confirm(reply, deadline).await.map_err(not_confirmed) }),
    };
    let released: Vec<_> = holds.iter().map(|hold| client.limit_id(&hold.session.key)).collect();
    confirmed(updated).and(confirmed(charged)).map_result(move |result| {
        capacity_released(released);
        result
    })
}

async fn confirm(reply: BoxFuture<Result<(), Error>>, deadline: Duration) -> Result<(), Error> {
    let timer = sleep(deadline).ok_or_else(no_runtime)?;
    match select(reply, pin!(timer)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(Error::unavailable(format!(
            "the call to Redis failed: no reply within the deadline of {deadline:?}; check the server"
        ))),
    }
}

fn not_confirmed(error: Error) -> Error {
    Error::unavailable(
        "settling a held cost is not confirmed: see the source of this error; the settlement is tried again until the \
         hold expires, and then the whole held cost is charged",
    )
    .with_source(error)
}

impl HoldTransport for Client {
    fn send_update(&self, mut updates: Vec<SessionUpdate>) -> Result<BoxFuture<Result<(), Error>>, Error> {
        // Holds before and after a replacement of the limits have different scripts.
        updates.sort_by_key(|update| update.target.entry.limit);
        let mut replies = Vec::new();
        for updates in group_by_limits(updates, |update| &update.target.limits) {
            let key_of = |update: &SessionUpdate| (Arc::clone(&update.session.key), Arc::clone(&update.target));
            let sessions: Vec<_> = updates.iter().map(key_of).collect();
            replies.push(self.send(&sessions, OperationKind::Update(updates))?);
        }
        Ok(all(replies))
    }

    fn send_charge(&self, charges: &[(Arc<Session>, u64)]) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let mut charges: Vec<_> =
            charges.iter().map(|(session, cost)| (Arc::clone(&session.key), session.target(), *cost)).collect();
        charges.sort_by_key(|(_, target, _)| target.entry.limit);
        let mut replies = Vec::new();
        for charges in group_by_limits(charges, |(_, target, _)| &target.limits) {
            let templates = charges.iter().filter_map(|(_, target, cost)| {
                let limit = &target.limits.limits[target.entry.limit];
                let algorithm = limit.algorithm(target.entry.algorithm.as_ref())?;
                Some(Arc::new(limit.template(target.entry.limit, Operation::Charge, algorithm, *cost, *cost)))
            });
            let kind = OperationKind::Mutate(templates.collect());
            let sessions: Vec<_> =
                charges.iter().map(|(key, target, _)| (Arc::clone(key), Arc::clone(target))).collect();
            replies.push(self.send(&sessions, kind)?);
        }
        Ok(all(replies))
    }
}

/// Waits for all replies. Returns the first error.
fn all(mut replies: Vec<BoxFuture<Result<(), Error>>>) -> BoxFuture<Result<(), Error>> {
    if replies.len() == 1
        && let Some(reply) = replies.pop()
    {
        return reply;
    }
    Box::pin(async move { join_all(replies).await.into_iter().collect() })
}

impl Client {
    /// Returns the number of a limit and sub-key, by its key in Redis: other limiters may have the same keys in other servers.
    pub(crate) fn limit_id(self: &Arc<Self>, redis_key: &[u8]) -> u64 {
        limit_id((Arc::as_ptr(self) as usize, redis_key))
    }

    /// Queues an operation on some sessions with the same limits.
    fn send(
        &self,
        sessions: &[(Arc<[u8]>, Arc<SessionTarget>)],
        kind: OperationKind,
    ) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let Some((_, first)) = sessions.first() else { return Ok(Box::pin(std::future::ready(Ok(())))) };
        let entries = sessions.iter().map(|(key, target)| (&**key, &target.entry));
        let target = OperationTarget::of_entries(&first.limits, entries);
        let reply = self.enqueue(|reply| Ok(target.operation(kind, reply)), None)?;
        Ok(Box::pin(async move { reply.await.unwrap_or_else(|_| Err(reply_lost())).map(drop) }))
    }
}
