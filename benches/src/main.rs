//! Decisions a second, beside the peers and the floor, in one run.
//!
//! ```text
//! cargo bench                        # all of it: some ten minutes
//! cargo bench -- --quick             # under a minute once built
//! cargo bench -- redis               # those with Redis: starts a server of its own
//! cargo bench -- memory              # the scenarios whose names contain `memory`
//! cargo bench -- memory service      # those whose names contain one of these
//! cargo bench -- --json              # one JSON object a scenario
//! cargo bench -- --table             # rows of a table in Markdown: `scripts/bench-table` puts them into docs/performance.md
//! ```
//!
//! Contenders take turns within a scenario, round by round, and the median over the rounds is told: the machine's speed may
//! drift, the ratios stay. Nanoseconds are those that a thread spends on one decision. A ratio is ours to theirs.

mod floor;
mod harness;
mod insertion;
mod memory;
mod peers;
mod redis;
mod service;
mod wire;

use harness::Harness;

fn main() {
    if insertion::is_asked_of_this_process() {
        return;
    }
    let mut harness = Harness::from_args();
    memory::run(&mut harness);
    insertion::run(&mut harness);
    service::run(&mut harness);
    wire::run(&mut harness);
    redis::run(&harness);
}
