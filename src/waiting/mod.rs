//! Waiting for a limiter without the middleware: for jobs, streams and messages.
//!
//! | Item | Purpose |
//! |---|---|
//! | [`until_ready`] | waits until a limiter allows a cost |
//! | [`LimitedStream`] | a stream whose items wait |
//! | [`LimitedSink`] | a sink whose items wait |
//!
//! # Order
//!
//! Callers that wait for one limit of a store ([`Memory`](crate::Memory), `Redis`) stand in one queue of the process, in
//! order of arrival, whatever their keys are. A caller that leaves gives its start to the next one. No caller is charged
//! before its start. The requests of a [`RateLimitLayer`](crate::RateLimitLayer) wait in the queues of the layer: both ask
//! when the limiter can admit, and none is kept from its starts. A limiter of your own names no limit of a store, so its
//! callers have no order.

mod caller;
mod limited;
mod until_ready;

pub(crate) use self::caller::Caller;
pub use self::limited::{LimitedSink, LimitedSinkError, LimitedStream};
pub use self::until_ready::until_ready;
