//! Holds, and the guards that settle them.

use std::sync::Arc;

use futures_util::future::{FutureExt, TryFutureExt, join_all};

use super::future::{by_deadline, reply_of};
use super::operation::{OperationKind, OperationTarget};
use super::request::Request;
use super::{Client, no_runtime};
use crate::decision::Costs;
use crate::error::Error;
use crate::limiter::{Held, LimiterFuture};
use crate::store::inner::BoxFuture;
use crate::store::inner::runtime::sleep;
use crate::store::inner::{capacity_released, limit_id};
use crate::store::redis::holds::{
    Grant, GrantedHold, HoldRegistry, HoldTransport, Session, SessionTarget, SessionUpdate,
};
use crate::store::redis::script::{Operation, group_by_limits};

/// Returns the guard of what was granted. If the request is charged once, the settlement records the charge.
pub(super) fn into_guard(client: &Arc<Client>, grant: Grant, request: Request) -> Option<Held> {
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
    let (client, request) = (Arc::clone(client), request.once.is_some().then_some(request));
    let settle_request = move |actual: Costs| {
        let settled = settle(&client, &registry, &of_request, |hold| hold.actual(&actual));
        match &request {
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
        Some(Ok(reply)) => LimiterFuture::pending(async move {
            let timer = sleep(deadline).ok_or_else(no_runtime).map_err(not_confirmed)?;
            let message =
                || format!("the call to Redis failed: no reply within the deadline of {deadline:?}; check the server");
            by_deadline(reply, timer, message).await.map_err(not_confirmed)
        }),
    };
    let released: Vec<_> = holds.iter().map(|hold| client.limit_id(&hold.session.key)).collect();
    confirmed(updated).and(confirmed(charged)).map_result(move |result| {
        capacity_released(released);
        result
    })
}

fn not_confirmed(error: Error) -> Error {
    Error::unavailable(
        "settling a held cost is not confirmed: see the source of this error; the settlement is tried again until the \
         hold expires, and then the whole held cost is charged",
    )
    .with_source(error)
}

impl HoldTransport for Client {
    fn send_update(&self, updates: Vec<SessionUpdate>) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let of = |update: &SessionUpdate| (Arc::clone(&update.session.key), Arc::clone(&update.target));
        self.send_groups(updates, of, OperationKind::Update)
    }

    fn send_charge(&self, charges: &[(Arc<Session>, u64)]) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let charges =
            charges.iter().map(|(session, cost)| (Arc::clone(&session.key), session.target(), *cost)).collect();
        let of = |(key, target, _): &(Arc<[u8]>, Arc<SessionTarget>, u64)| (Arc::clone(key), Arc::clone(target));
        self.send_groups(charges, of, |charges| {
            let templates = charges.iter().filter_map(|(_, target, cost)| {
                let limit = &target.limits.limits[target.entry.limit];
                let algorithm = limit.algorithm(target.entry.algorithm.as_ref())?;
                Some(Arc::new(limit.template(target.entry.limit, Operation::Charge, algorithm, *cost, *cost)))
            });
            OperationKind::Mutate(templates.collect())
        })
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

    /// Queues operations on sessions, one for the sessions with the same limits: holds before and after a replacement of the
    /// limits have different scripts.
    fn send_groups<T>(
        &self,
        mut items: Vec<T>,
        session_of: impl Fn(&T) -> (Arc<[u8]>, Arc<SessionTarget>),
        kind: impl Fn(Vec<T>) -> OperationKind,
    ) -> Result<BoxFuture<Result<(), Error>>, Error> {
        items.sort_by_key(|item| session_of(item).1.entry.limit);
        let mut replies = Vec::new();
        for group in group_by_limits(items, |item| Arc::clone(&session_of(item).1.limits)) {
            let sessions: Vec<_> = group.iter().map(&session_of).collect();
            let entries = sessions.iter().map(|(key, target)| (&**key, &target.entry));
            let target = OperationTarget::of_entries(&sessions[0].1.limits, entries);
            let reply = self.enqueue(|reply| Ok(target.operation(kind(group), reply)), None)?;
            replies.push(reply_of(reply).map_ok(drop).boxed());
        }
        Ok(all(replies))
    }
}
