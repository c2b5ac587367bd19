//! The layer through its public API: the contract of `tower::Service`, charges, responses, key extractors, and stacks.
//!
//! - `contract`: an allowed request goes to the instance that was made ready; a rejection releases the reserved readiness;
//!   a future that is dropped at any stage leaks nothing. `readiness`: what the model of permits does not have.
//! - `waiting`: a request that waits for its start holds no readiness, and is not charged.
//! - `queues`, `delays`, `goodput`, `fairness`: the order of waiting requests, their times, what is served under
//!   overload, and who is served.
//! - `over_http`, `bodies`, `heads`: HTTP responses; `answers`: the other responders.
//! - `read_ahead`, `uploads`: bodies that are read while requests wait; `rejected_uploads`: bodies that are discarded.
//! - `in_flight`, `in_flight_bodies`: when a request in flight ends.
//! - `retry`, `gate`, `gate_law`: clients that are rejected.
//! - `idempotency`: requests that clients send again with the same id.
//! - `keys`: key extractors and exemptions.
//! - `stacks`: stacks of axum and tower; `spawned`: clients in tasks; `in_axum`: axum's response types.
//! - `until_ready`: waiting without the middleware.
//!
//! No test sleeps or reads the time: the clock is manual or paused.

mod answers;
mod bodies;
mod conditions;
mod config;
mod contract;
mod deadlines;
mod delays;
mod fairness;
mod fields;
mod gate;
mod gate_law;
mod goodput;
mod headers;
mod heads;
mod idempotency;
mod in_axum;
mod in_flight;
mod in_flight_bodies;
mod keys;
mod load;
mod over_http;
mod pacing;
#[path = "../../servers/process.rs"]
mod process;
mod queue_choice;
mod queue_rules;
mod queues;
#[path = "../../../src/random.rs"]
mod random;
mod read_ahead;
mod readiness;
mod rejected_uploads;
mod releases;
mod retry;
mod runtimes;
mod settling;
mod spawned;
mod stacks;
mod support;
#[path = "../tasks.rs"]
mod tasks;
mod traces;
mod until_ready;
mod uploads;
mod waiting;
mod waiting_table;
mod wire;
