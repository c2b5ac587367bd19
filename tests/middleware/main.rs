//! The middleware from outside: Tower's contract, what is charged, how decisions look, whose a request is, and how the
//! layer fits into real stacks.
//!
//! - `readiness`: a decision that is ready at once is forwarded to the very instance that was made ready, a refusal
//!   releases what readiness reserved, `poll_ready` hides nothing, clones share the limiter and nothing else.
//! - `pending`: a decision that is still on its way keeps the ready instance; a future that is dropped leaks nothing,
//!   at whatever stage.
//! - `waiting`: a request that waits for its turn holds nothing, and pays nothing if it goes away.
//! - `charges`: what is charged, and that it stays charged. (`tests/settling.rs` has what is settled afterwards.)
//! - `limits`: limiters of every shape behind the layer.
//! - `over_http`, `bodies`: what a decision looks like in HTTP; `answers`: in the other modes.
//! - `keys`: every extractor.
//! - `stacks`: axum's and tower's ways to put layers together.
//!
//! No test sleeps or reads the time: decisions are made by a clock that is moved by hand, or by the test itself.

mod answers;
mod bodies;
mod charges;
mod config;
mod delays;
mod fields;
mod headers;
mod keys;
mod limits;
mod over_http;
mod pending;
mod readiness;
mod retry;
mod settling;
mod stacks;
mod support;
mod waiting;
mod wire;
