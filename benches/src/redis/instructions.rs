//! Counts the instructions of the server and of the client per decision with callgrind. Counts, unlike times, do not
//! depend on the machine's load. Only user mode is counted, so neither the kernel nor waiting is part of it.
//!
//! A count is the difference of two runs, without the set-up. The output is a Markdown table.

use std::process::Command;

use futures_util::future::join_all;
use tokio::runtime::Runtime;

use super::competitors::{self, Contestant};
use crate::harness::Harness;
use crate::server::Server;

const CALLERS: [usize; 3] = [1, 8, 64];
const ROUNDS: [usize; 2] = [100, 600];
const CONTESTANTS: [(&str, super::Make); 3] =
    [("ours", competitors::gcra), ("redis_cell", competitors::cell), ("plain_script", competitors::plain)];

const CALLGRIND: [&str; 3] = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Set for the process that callgrind runs as the client: the server's port, the contestant, the callers, the rounds.
const CHILD: &str = "REDIS_INSTRUCTIONS_CHILD";

/// Runs the decisions of the client under callgrind, if this is that process.
pub(super) fn run_as_child() -> bool {
    let Ok(work) = std::env::var(CHILD) else { return false };
    let numbers: Vec<usize> = work.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [port, contestant, callers, rounds] = numbers[..] else { panic!("{CHILD}: four numbers") };
    let server = Server::running(u16::try_from(port).expect("a port"));
    decide(&server, contestant, callers, rounds);
    true
}

pub(super) fn run(harness: &Harness) {
    if !harness.wants_explicitly("redis instructions") {
        return;
    }
    println!("| Callers | Client | Instructions of Redis | of the client |");
    println!("|---|---|---|---|");
    for callers in CALLERS {
        for (contestant, (name, _)) in CONTESTANTS.iter().enumerate() {
            if *name == "redis_cell" && std::env::var_os("REDIS_CELL").is_none() {
                continue;
            }
            let per_decision = |count: &dyn Fn(usize) -> f64| {
                (count(ROUNDS[1]) - count(ROUNDS[0])) / ((ROUNDS[1] - ROUNDS[0]) * callers) as f64
            };
            let of_server = per_decision(&|rounds| {
                let mut server = super::start_server_under(&[&CALLGRIND[..], &["--log-file=callgrind.log"]].concat());
                decide(&server, contestant, callers, rounds);
                server.command(&["SHUTDOWN", "NOSAVE"]);
                server.wait();
                collected(&std::fs::read_to_string(server.folder.file("callgrind.log")).expect("callgrind's output"))
            });
            let server = super::start_server();
            let of_client = per_decision(&|rounds| {
                let mut client = Command::new(CALLGRIND[0]);
                client.args(&CALLGRIND[1..]);
                client.arg(std::env::current_exe().expect("this program"));
                client.env(CHILD, format!("{} {contestant} {callers} {rounds}", server.port));
                let output = client.output().expect("valgrind (Debian: apt-get install -y valgrind)");
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                collected(&String::from_utf8_lossy(&output.stderr))
            });
            println!("| {callers} | {name} | {of_server:.0} | {of_client:.0} |");
        }
    }
}

/// In each round every caller decides once, on its own key.
fn decide(server: &Server, contestant: usize, callers: usize, rounds: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let make: fn(&Server, &Runtime) -> Option<Contestant> = CONTESTANTS[contestant].1;
    let contestant = make(server, &runtime).expect("a contestant");
    runtime.block_on(async {
        for _ in 0..rounds {
            join_all((0..callers as u64).map(|key| (contestant.decide)(key))).await;
        }
    });
}

/// Returns the total that callgrind prints.
fn collected(output: &str) -> f64 {
    let total = output.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    total.unwrap_or_else(|| panic!("callgrind printed no total: {output}"))
}
