//! Proves that threads which decide at the same time decide as if they took turns.
//!
//! Threads acquire, hold, settle, release, peek and reset, at various costs, for a few keys under one limit or several, while
//! the clock moves. Each notes what it called, when it called and when it had its answer, and what that was. Afterwards an
//! order is looked for in which a slow and obvious run, one call after another, gives every one of these answers, down to the
//! figures; a call that had returned before another began comes before it. (Whoever finds such an order for every history
//! calls the thing *linearizable*.) Histories that no order explains, of limiters made to fail, show that the search can
//! fail.
//!
//! `HISTORY_ROUNDS=1000 cargo test --release --all-features --test memory linearizability` looks at so many histories of each kind.

mod broken_limiters;
mod model;
mod order;
mod recording;
mod stress;
mod traffic;
