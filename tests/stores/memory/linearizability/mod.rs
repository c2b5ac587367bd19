//! Proves that the memory store is linearizable.
//!
//! - `traffic`: threads acquire, hold, settle, release, peek and reset for a few keys, while the clock moves.
//! - `recording`: each call is recorded with its start, its end and its result.
//! - `order`: searches for a sequential order with the recorded results. A call that returned before another call
//!   started
//!   must precede that call.
//! - `model`: the sequential implementation that must give equal results, including all figures.
//! - `stress`: the algorithms and limiters under test.
//! - `broken_limiters`: histories of broken limiters, which the search must reject.
//!
//! `HISTORY_ROUNDS=1000 cargo test --release --all-features --test memory linearizability` checks 1000 histories of
//! each kind.

mod broken_limiters;
mod model;
mod order;
mod recording;
mod stress;
mod traffic;
