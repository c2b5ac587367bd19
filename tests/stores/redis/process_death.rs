//! Four processes hold on one key, while one is killed and one is stopped.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter as _, Quota, Redis, RedisServer};

use crate::child::{child_task, command};
use crate::helpers::{LONG_DEADLINE, acquire, hold};
use crate::process::Process;
use crate::server::Server;

const LIMIT: u64 = 2_000;
/// A process of the test may stand still for nearly as long.
const EXPIRY: Duration = Duration::from_secs(6);
/// The final hold of each process, and its actual cost.
const HELD: u64 = 10;
const ACTUAL: u64 = 4;

fn limiter(server: RedisServer) -> Redis<str> {
    let limiter = Redis::builder(server, "api", FixedWindow::new(Quota::per_day(LIMIT)));
    limiter.hold_expiry(EXPIRY).deadline(LONG_DEADLINE).build().expect("limits")
}

/// A child process that continues on command.
struct Holder {
    process: Process,
}

impl Holder {
    fn start(server: &Server) -> Self {
        let mut command = command("process_death::process", "hold", &server.address());
        Self { process: Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped())) }
    }

    /// Waits for the child's next result.
    fn next_result(&mut self) -> u64 {
        self.process.find(|line| line.split_once("reported: ")?.1.parse().ok())
    }

    fn continue_child(&mut self) {
        self.process.write("continue");
    }
}

/// Not a test: the child process.
#[test]
#[ignore = "child process of another test"]
fn process() {
    let Some((_, server)) = child_task() else { return };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let held = runtime.block_on(async {
        let limiter = limiter(server);
        let mut tasks = JoinSet::new();
        for task in 0..10_u64 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut settled = 0;
                for round in 0..20 {
                    let held = hold(&limiter, "alice", 3).await;
                    sleep(Duration::from_millis(task % 3)).await;
                    let actual = (task + round) % 5;
                    held.settle(actual).await.expect("done");
                    settled += actual;
                }
                settled
            });
        }
        let settled: u64 = tasks.join_all().await.into_iter().sum();
        let held = hold(&limiter, "alice", HELD).await;
        println!("reported: {settled}");
        held
    });
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    runtime.block_on(async {
        held.settle(ACTUAL).await.expect("an answer");
        println!("reported: {ACTUAL}");
    });
}

async fn used(limiter: &Redis<str>) -> u64 {
    LIMIT - limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure")
}

#[tokio::test]
async fn holds_survive_process_death() {
    let server = Server::start();
    let limiter = limiter(server.open());
    let mut holders: Vec<_> = (0..4).map(|_| Holder::start(&server)).collect();
    let settled: u64 = holders.iter_mut().map(Holder::next_result).sum();
    assert_eq!(used(&limiter).await, settled + 4 * HELD, "each settlement is charged once");
    // All remaining tokens are taken. From here on every request is denied, and nothing refills.
    let rest = LIMIT - used(&limiter).await;
    assert!(acquire(&limiter, "alice", AcquireOptions::cost(rest)).await.expect("an answer").decision.is_allowed());
    let mut running = holders.split_off(2);
    let [killed, stopped] = &mut holders[..] else { unreachable!() };
    killed.process.signal("-KILL");
    stopped.process.signal("-STOP");
    let began = Instant::now();
    while began.elapsed() < EXPIRY + Duration::from_secs(1) {
        let denied = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
        assert!(!denied.is_allowed(), "after {:?}: {denied:?}", began.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    // The other processes keep their holds and release what they do not use.
    for holder in &mut running {
        holder.continue_child();
        assert_eq!(holder.next_result(), ACTUAL);
    }
    let unused = 2 * (HELD - ACTUAL);
    assert_eq!(used(&limiter).await, LIMIT - unused, "holds of dead processes are settled at their whole cost");
    let length = server.number(&["STRLEN", &server.keys()[0]]);
    assert_eq!(length, 48, "nothing remains held");
    // The continued process has nothing left to settle.
    stopped.process.signal("-CONT");
    stopped.continue_child();
    assert_eq!(stopped.next_result(), ACTUAL);
    assert_eq!(used(&limiter).await, LIMIT - unused);
    assert!(acquire(&limiter, "alice", AcquireOptions::cost(unused)).await.expect("an answer").decision.is_allowed());
    assert!(!acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision.is_allowed());
}
