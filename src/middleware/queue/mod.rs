//! Queues of waiting requests: uncharged, in order of arrival, found by a keyed hash.
//!
//! A request that cannot start now joins the queue of the limit that denied it. The queue asks the limiter, and hands
//! each admitted start to the first waiting request that can use it: so a request that leaves takes no start with it. A
//! task drives each queue, so a future that is not polled delays no other request. A queue ends when nothing waits and
//! its last start has passed.
//!
//! A queue asks for a request only if no other queue of the request's limits has an earlier request. Otherwise the
//! request moves there, in its order of arrival:
//!
//! | Event | The request moves to |
//! |---|---|
//! | another limit denies the request's ask | the queue of that limit |
//! | the request is next, its queue's limit would admit it, and another queue has an earlier request | that queue |
//!
//! | File | Content |
//! |---|---|
//! | `queues.rs` | the queues of a layer |
//! | `join.rs` | how a request joins a queue, and the bounds |
//! | `state.rs`, `asks.rs` | one queue: its starts, and its asks |
//! | `waiters.rs` | the waiting requests of one queue |
//! | `pace.rs`, `estimate.rs` | when the queue asks; how long a new request would wait |
//! | `abandonment.rs` | the age at which waiting requests leave |
//! | `sharing.rs` | how processes share a limit that schedules no starts |
//! | `ids.rs` | the queues of a key |
//! | `ticket.rs` | what a queue and a request's future share |
//! | `driver.rs` | the task that drives a queue |
//! | `waiting.rs` | the future of a waiting request, and the guard of a start |
//!
//! All state of a queue is under the mutex of its shard. A ticket has a mutex of its own, which is locked after that of
//! a shard, never before.

mod abandonment;
mod asks;
mod driver;
mod forecast;
mod ids;
mod join;
#[cfg(all(test, loom))]
mod loom_tests;
mod pace;
mod queues;
mod rules;
mod state;
mod ticket;
mod waiters;
mod waiting;

pub(crate) use self::ids::{QueueIds, visit_limits};
pub(crate) use self::join::{Arrival, Asked, Bounds, JoinError, Refused};
pub(crate) use self::queues::Queues;
pub(crate) use self::ticket::{Ask, Start};
pub(crate) use self::waiting::{GrantedStart, StartHold, Waited, Waiting, release_and_wake};
