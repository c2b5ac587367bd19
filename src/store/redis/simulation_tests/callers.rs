//! The callers of the limiters, and what they observe.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::id_laws;
use super::model::Verdict;
use super::scenario::{Call, HoldEnd, Kind};
use super::world::World;
use crate::limiter::{Held, Outcome};
use crate::store::redis::Redis;
use crate::{AcquireOptions, Decision, DecisionSource, Error, Limiter};

/// What one caller has observed. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) index: usize,
    pub(super) call: Call,
    pub(super) asked_at: u64,
    pub(super) ended_at: u64,
    pub(super) answer: Answer,
    /// When the guard of a hold ended, and when that was confirmed or failed.
    pub(super) settled: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The verdict, and what remains.
    Decided(Verdict, u64),
    /// A hold was settled by its id.
    Settled,
    /// Allowed by the leases of the process.
    Leased,
    Failed(String),
    /// The caller has dropped the future.
    Left,
}

/// Runs one caller.
pub(super) async fn run(index: usize, call: Call, limiter: Redis<u64>, world: World) -> Observed {
    for _ in 0..call.yields {
        yield_now().await;
    }
    let asked_at = world.state().now();
    world.state().note(|| {
        format!("call {index}: client {} asks {:?} key {} cost {}", call.client, call.kind, call.key, call.cost)
    });
    let outcome = match call.kind {
        Kind::SettleId(id, actual) => {
            let id = id_laws::text(id + mistake!(AnotherIdIsSettled, 1, 0));
            let result = limiter.settle(&call.key, &id, actual).await;
            let ended_at = world.state().now();
            let answer = result.map_or_else(|error| Answer::Failed(error.to_string()), |()| Answer::Settled);
            world.state().note(|| format!("call {index}: {answer:?}"));
            return Observed { index, call, asked_at, ended_at, answer, settled: None };
        }
        _ if mistake!(BreakerStaysOpen) && world.state().is_breaker_open(call.client) => {
            Some(Err(Error::unavailable("circuit breaker open")))
        }
        _ => ask(limiter, call).await,
    };
    let ended_at = world.state().now();
    let (answer, held) = match outcome {
        None => (Answer::Left, None),
        Some(Err(error)) => (Answer::Failed(error.to_string()), None),
        Some(Ok(outcome)) => (decided(&outcome.decision), outcome.held),
    };
    world.state().note(|| format!("call {index}: {answer:?}"));
    let mut settled = None;
    if let (Some(held), Kind::Hold(lasts, end)) = (held, call.kind) {
        sleep(Duration::from_millis(lasts)).await;
        let from = world.state().now();
        let result = settle(held, end).await;
        let until = world.state().now();
        settled = Some((from, until));
        world.state().note(|| format!("call {index}: settled: {result:?}"));
    }
    Observed { index, call, asked_at, ended_at, answer, settled }
}

/// Returns `None` if the caller leaves before the answer.
async fn ask(limiter: Redis<u64>, call: Call) -> Option<Result<Outcome, Error>> {
    let options = AcquireOptions::cost(call.cost);
    let asking = async move {
        match call.kind {
            Kind::Decide => limiter.acquire(&call.key, options).await,
            Kind::Peek => limiter.peek(&call.key, options).await.map(Outcome::from),
            Kind::Hold(..) => limiter.acquire(&call.key, options.hold()).await,
            Kind::Once(id) => limiter.acquire(&call.key, id_laws::request(call.cost, id)).await,
            Kind::Reserve(id) => limiter.acquire(&call.key, id_laws::reservation(call.cost, id)).await,
            Kind::SettleId(..) => unreachable!("no decision"),
        }
    };
    let Some(millis) = call.leaves_after else { return Some(asking.await) };
    match select(Box::pin(asking), pin!(sleep(Duration::from_millis(millis)))).await {
        Either::Left((outcome, _)) => Some(outcome),
        Either::Right(((), asking)) => {
            if mistake!(AbandonedDecisionIsSent) {
                tokio::spawn(async { asking.await.ok()?.held?.release().await.ok() });
            } else if mistake!(UnreceivedGrantIsKept) {
                std::mem::forget(asking);
            }
            None
        }
    }
}

async fn settle(held: Held, end: HoldEnd) -> Option<Result<(), Error>> {
    match end {
        HoldEnd::Settle(actual) => Some(held.settle(actual).await),
        HoldEnd::SettleAndLeave(actual) => {
            drop(held.settle(actual));
            None
        }
        HoldEnd::Release => Some(held.release().await),
        HoldEnd::DropGuard => {
            drop(held);
            None
        }
    }
}

fn decided(decision: &Decision) -> Answer {
    if decision.source() == DecisionSource::Lease {
        return Answer::Leased;
    }
    let verdict = if decision.exceeds_limit() {
        Verdict::ExceedsLimit
    } else if let Some(wait) = decision.retry_after() {
        Verdict::Denied(u64::try_from(wait.as_micros()).expect("a short time"))
    } else {
        Verdict::Allowed
    };
    Answer::Decided(verdict, decision.remaining().unwrap_or(0))
}
