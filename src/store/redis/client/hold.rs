//! Holds, and the guards that settle them.

use std::sync::Arc;

use futures_util::future::{FutureExt, TryFutureExt, join_all};
use tokio::sync::oneshot;

use super::completion::{OperationResult, by_deadline, reply_of};
use super::operation::{OperationKind, OperationTarget};
use super::pending_decision::PendingDecision;
use super::{Client, no_runtime};
use crate::decision::Costs;
use crate::error::Error;
use crate::limiter::{Held, LimiterFuture};
use crate::store::inner::runtime::sleep;
use crate::store::inner::{BoxFuture, capacity_released, limit_id};
use crate::store::redis::holds::{Grant, GrantedHold, HoldRegistry, HoldTransport, Session, SessionUpdate};
use crate::store::redis::lease::{LeaseRenewal, LeaseTransport};
use crate::store::redis::script::{EntryTarget, Operation, OperationTemplate, limit_has_no_algorithm};

/// Returns the guard of what was granted. If the request is charged once, the settlement records the charge.
pub(super) fn into_guard(
    client: &Arc<Client>,
    grant: Grant,
    request: PendingDecision,
    template: Arc<OperationTemplate>,
) -> Option<Held> {
    let (options, registry) = (request.options, Arc::clone(&grant.registry));
    let (until_end, holds): (Vec<_>, Vec<_>) =
        grant.into_holds().into_iter().partition(|hold| hold.session.is_in_flight);
    let until_end = until_end.iter().map(|hold| hold.held).max().map(|cost| {
        let (client, registry) = (Arc::clone(client), Arc::clone(&registry));
        Held::until_end(cost, move || settle(&client, &registry, &until_end, |_| 0))
    });
    if !options.hold {
        return until_end;
    }
    let units = request.target.limits.limits.iter().filter_map(|limit| limit.facts.cost.unit()).collect();
    let (fixed, of_request): (Vec<_>, Vec<_>) = holds.into_iter().partition(|hold| hold.is_fixed);
    let of_fixed = (Arc::clone(client), Arc::clone(&registry));
    let (client, request) = (Arc::clone(client), request.once.is_some().then_some(request));
    let settle_request = move |actual: Costs| {
        let settled = settle(&client, &registry, &of_request, |hold| hold.actual(&actual));
        match &request {
            None => settled,
            // Without the record, a repeat is charged.
            Some(request) => {
                let recorded = request.record(&client, &actual, &template.charges_before);
                settled.and(recorded.map_result(|_| Ok(())))
            }
        }
    };
    let mut held = Held::of_limits(options.costs(), units, settle_request);
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
    let send = |hold: &GrantedHold| {
        let actual = actual(hold);
        if hold.held > 0 {
            hold.settle(actual);
            registry.track(&hold.session);
            return Some(client.send_update(SessionUpdate::new(&hold.session, registry, None)));
        }
        // A hold of 0 has no session, so the server cannot recognise a repeated charge: it is sent once.
        (actual > 0).then(|| client.send_charge(&hold.session, actual))
    };
    // All are settled, also after an error. A charge is not sent if its reply is dropped.
    let (mut replies, mut refused) = (Vec::new(), Ok(()));
    for sent in holds.iter().filter_map(send) {
        match sent {
            Ok(reply) => replies.push(reply),
            Err(error) => refused = refused.and(Err(not_confirmed(error))),
        }
    }
    let released: Vec<_> = holds.iter().map(|hold| client.limit_id(&hold.session.key)).collect();
    let confirmed = if replies.is_empty() {
        LimiterFuture::ready(refused)
    } else {
        let deadline = client.config.deadline;
        LimiterFuture::pending(async move {
            let timer = sleep(deadline).ok_or_else(no_runtime).map_err(not_confirmed)?;
            let message =
                || format!("the call to Redis failed: no reply within the deadline of {deadline:?}; check the server");
            let replies = async { join_all(replies).await.into_iter().collect::<Result<(), _>>() };
            by_deadline(replies, timer, message).await.map_err(not_confirmed).and(refused)
        })
    };
    confirmed.map_result(move |result| {
        capacity_released(released);
        result
    })
}

fn not_confirmed(error: Error) -> Error {
    Error::unavailable(
        "settling a held cost is not confirmed: see the source of this error; it may be tried again until \
         the hold expires",
    )
    .with_source(error)
}

impl HoldTransport for Client {
    fn send_update(&self, update: SessionUpdate) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let (session, target) = (Arc::clone(&update.session), Arc::clone(&update.target));
        let reply = self.send_to_entry(&session.key, &target, OperationKind::Update(Box::new(update)))?;
        Ok(reply_of(reply).map_ok(drop).boxed())
    }

    fn send_charge(&self, session: &Session, cost: u64) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let target = session.target();
        let limit = &target.limits.limits[target.limit];
        let algorithm = limit.algorithm(&target.algorithm).ok_or_else(limit_has_no_algorithm)?;
        let template = limit.template(target.limit, Operation::Charge, algorithm, cost, cost);
        let reply = self.send_to_entry(&session.key, &target, OperationKind::Mutate(vec![Arc::new(template)]))?;
        Ok(reply_of(reply).map_ok(drop).boxed())
    }
}

impl LeaseTransport for Client {
    fn send(&self, renewal: LeaseRenewal) {
        let (key, quota) = (Arc::clone(&renewal.key), Arc::clone(&renewal.quota));
        // The renewal receives the result by itself.
        drop(self.send_to_entry(&key, &quota.entry, OperationKind::Lease(Box::new(renewal))));
    }
}

impl Client {
    /// Returns the number of a limit and sub-key, by its key in Redis: other limiters may have the same keys in other servers.
    pub(crate) fn limit_id(self: &Arc<Self>, redis_key: &[u8]) -> u64 {
        limit_id((Arc::as_ptr(self) as usize, redis_key))
    }

    fn send_to_entry(
        &self,
        key: &[u8],
        entry: &EntryTarget,
        kind: OperationKind,
    ) -> Result<oneshot::Receiver<OperationResult>, Error> {
        self.enqueue(|reply| Ok(OperationTarget::of_entry(key, entry).operation(kind, reply)), None)
    }
}
