//! Measures decisions of this crate, of other limiters and of the baseline in one run.
//!
//! ```text
//! cargo bench                        # all scenarios: about ten minutes
//! cargo bench -- --quick             # less than a minute after the build
//! cargo bench -- redis               # the scenarios with Redis: starts its own server
//! cargo bench -- "redis overload"    # open-loop load over capacity: only by this name, less than five minutes
//! cargo bench -- "redis holds"       # decisions beside up to 100,000 holds: only by this name, a minute
//! cargo bench -- "redis lease cost"  # the server's processor time with leases and without: only by this name, two minutes
//! cargo bench -- "redis callers"     # 1 to 2048 callers, with latencies and processor time, on one and several threads
//! cargo bench -- "redis instructions"  # of the server and of the client: only by this name, needs valgrind
//! cargo bench -- "redis neighbour"   # the latency of another client beside a full load: 20 seconds
//! cargo bench -- "redis leases"      # leases beside memory, Redis and trypema, and a quota of eight processes: 2 minutes
//! cargo bench -- memory              # the scenarios with `memory` in their names
//! cargo bench -- memory service      # the scenarios with `memory` or `service` in their names
//! cargo bench -- --json              # one JSON object per scenario
//! cargo bench -- --table             # a Markdown table, which `scripts/bench-table` writes to benches/figures.md
//! ```
//!
//! The contestants of a scenario run in alternating rounds, and the output is the median of the rounds. The machine's
//! speed may drift during a run; the ratios hardly change. `ns` is the time that one thread spends on one decision. A
//! ratio is the value of this crate divided by the value of the other contestant.

mod baseline;
#[path = "../../tests/servers/cluster_server.rs"]
mod cluster_server;
mod crowd;
mod harness;
mod insertion;
mod memory;
mod paths;
mod peers;
#[path = "../../tests/servers/process.rs"]
mod process;
#[path = "../../src/random.rs"]
mod random;
mod redis;
#[path = "../../tests/servers/server.rs"]
mod server;
mod service;
mod wire;

use harness::Harness;

fn main() {
    if crowd::run_as_child() || insertion::run_as_child() || service::run_as_child() || redis::run_as_child() {
        return;
    }
    let mut harness = Harness::from_args();
    memory::run(&mut harness);
    paths::run(&harness);
    crowd::run(&harness);
    insertion::run(&mut harness);
    service::run(&mut harness);
    wire::run(&mut harness);
    redis::run(&harness);
}
