//! Checks the bounds of limits in Redis from outside of the crate: real processes, which are killed and stopped, on real
//! servers, which stall, restart, fail over and run out of memory. `scripts/oracle` builds and runs it.
//!
//! Four processes use four limits with leases and without, hold costs, and count requests in flight, all at the same time.
//! Each one logs its admissions with the times before the call and after the answer. An admission counts at any time between
//! the two: an excess is one that no choice of these times explains. So the check needs neither the clock of the crate nor
//! its own times to be exact.

mod audit;
#[path = "../../tests/servers/certificates.rs"]
mod certificates;
#[path = "../../tests/servers/cluster_server.rs"]
mod cluster_server;
mod deployment;
mod model;
mod neighbour;
#[path = "../../tests/servers/process.rs"]
mod process;
#[path = "../../src/random.rs"]
mod random;
mod run;
mod scenario;
#[path = "../../tests/servers/sentinel_server.rs"]
mod sentinel_server;
#[path = "../../tests/servers/server.rs"]
mod server;
mod worker;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::scenario::{SCENARIOS, Scenario};

const HELP: &str = "\
scripts/oracle [--seconds N] [--release] [SCENARIO..]: checks the bounds of limits in Redis from outside of the crate.
Prints a table, and fails if a bound is exceeded.

--seconds N  the duration of each scenario: 20, and at least 12
--release    build the processes with optimization
--list       print the scenarios
By default it runs all scenarios, and `single` on the servers of scripts/redis-servers. REDIS_SERVER names another server,
and ORACLE_KEEP keeps the logs.";

const TITLES: [&str; 10] = [
    "Scenario",
    "Time",
    "Faults",
    "Losses",
    "Admitted",
    "By leases",
    "Failed",
    "Beyond the limit",
    "Least share",
    "Result",
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut words = arguments.iter().map(String::as_str);
    let (mut time, mut plan) = (Duration::from_secs(20), Vec::new());
    while let Some(word) = words.next() {
        match word {
            "process" => return worker::run(&arguments[1..]),
            "--help" => {
                println!("{HELP}");
                return Ok(());
            }
            "--list" => {
                SCENARIOS.iter().for_each(|scenario| println!("{}", scenario.name));
                return Ok(());
            }
            "--seconds" => {
                let seconds =
                    words.next().and_then(|seconds| seconds.parse().ok()).ok_or("--seconds needs a number")?;
                time = Duration::from_secs(seconds).max(Duration::from_secs(12));
            }
            name => plan.push(named(name)?),
        }
    }
    let mut plan: Vec<_> = plan.into_iter().map(|scenario| (scenario, String::new(), server::program())).collect();
    if plan.is_empty() {
        plan.extend(SCENARIOS.iter().map(|scenario| (scenario, String::new(), server::program())));
        for (name, program) in other_servers()? {
            plan.push((named("single")?, format!(", {name}"), program));
        }
    }
    println!("| {} |\n|{}", TITLES.join(" | "), "---|".repeat(TITLES.len()));
    let mut unexpected = Vec::new();
    for (scenario, version, program) in plan {
        let (mut row, is_expected) = run::run(scenario, &program, time);
        row[0] += &version;
        println!("| {} |", row.join(" | "));
        if !is_expected {
            unexpected.push(row.swap_remove(0));
        }
    }
    if unexpected.is_empty() { Ok(()) } else { Err(format!("not as expected: {}", unexpected.join(", ")).into()) }
}

fn named(name: &str) -> Result<&'static Scenario, String> {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    scenario.ok_or_else(|| format!("unknown scenario or option: {name}; use one of --list, or --help"))
}

/// Returns the names and the programs that `scripts/redis-servers` prints.
fn other_servers() -> Result<Vec<(String, OsString)>, Box<dyn Error>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/redis-servers");
    let output = Command::new(script).output()?;
    if !output.status.success() {
        return Err(format!("scripts/redis-servers failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let printed = String::from_utf8(output.stdout)?;
    Ok(printed.lines().filter_map(|line| line.split_once(' ')).map(|(name, path)| (name.into(), path.into())).collect())
}
