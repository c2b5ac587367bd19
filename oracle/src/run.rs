//! One run of a scenario: its processes, its faults, and the row of the table.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::mem::forget;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::audit::{Audit, KEYS};
use crate::deployment::Deployment;
use crate::model::{Beyond, LIMITS, Limit, Loss, SECOND, beyond};
use crate::process::{Folder, Process};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::worker::now;

const PROCESSES: usize = 4;
/// The last seconds have no faults.
const CALM: Duration = Duration::from_secs(6);
/// Longer than a run.
const ENDLESS: u32 = 1_000_000_000;

/// The processes of a run, which are killed, stopped and replaced.
struct Processes<'a> {
    scenario: &'a Scenario,
    address: String,
    folder: Folder,
    logs: Vec<PathBuf>,
    running: Vec<Process>,
}

impl Processes<'_> {
    fn start(&mut self, seconds: u32) -> Process {
        let log = self.folder.path().join(format!("log-{}", self.logs.len()));
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["process", &self.address]).arg(&log).args([PROCESSES.to_string(), seconds.to_string()]);
        command.arg(self.scenario.hold_expiry.as_millis().to_string()).arg(self.scenario.mistake);
        self.logs.push(log);
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()))
    }

    /// Kills a process, and starts another one.
    fn kill(&mut self, random: &mut Random) {
        let victim = random.index(PROCESSES);
        self.running[victim].kill();
        // Sometimes one that closes its limiters soon.
        self.running[victim] = self.start(random.choose(&[ENDLESS, 3]));
    }

    /// Stops a process for three times the duration of a lease.
    fn stop(&self, random: &mut Random) {
        let victim = &self.running[random.index(PROCESSES)];
        victim.signal("-STOP");
        sleep(Duration::from_millis(600));
        victim.signal("-CONT");
    }

    fn replace_ended(&mut self) {
        for index in 0..PROCESSES {
            if let Some(status) = self.running[index].status() {
                assert!(status.code() == Some(0), "a process has failed: {status}");
                self.running[index] = self.start(ENDLESS);
            }
        }
    }
}

/// Runs a scenario. Returns the cells of the table, and whether the result is as expected.
pub(crate) fn run(scenario: &Scenario, program: &OsString, time: Duration) -> (Vec<String>, bool) {
    let mut random = Random::new(scenario.name.bytes().map(u64::from).sum());
    let mut deployment = Deployment::start(scenario.servers, program);
    let (address, folder) = (deployment.address(), Folder::new("oracle"));
    let mut processes = Processes { scenario, address, folder, logs: Vec::new(), running: Vec::new() };
    processes.running = (0..PROCESSES).map(|_| processes.start(ENDLESS)).collect();
    let end = Instant::now() + time;
    let (mut count, mut notes) = (0, String::new());
    while scenario.mistake.is_empty() && Instant::now() + CALM < end {
        sleep(Duration::from_millis(random.between(300, 900)));
        let began = now();
        let name = match count % 3 {
            0 => {
                processes.kill(&mut random);
                "KillProcess".to_owned()
            }
            1 => {
                let fault = scenario.faults[count / 3 % scenario.faults.len()];
                deployment.suffer(fault, &mut random);
                format!("{fault:?}")
            }
            _ => {
                processes.stop(&mut random);
                "StopProcess".to_owned()
            }
        };
        notes += &format!("{began} {} {name}\n", now());
        processes.replace_ended();
        count += 1;
    }
    deployment.recover();
    let end = end.max(Instant::now() + CALM);
    while Instant::now() < end {
        sleep(Duration::from_millis(200));
        processes.replace_ended();
    }
    let ended = now();
    processes.running.clear();
    let losses = deployment.losses();
    drop(deployment);
    let mut audit = Audit::default();
    processes.logs.iter().for_each(|log| audit.read(log));
    if env::var_os("ORACLE_KEEP").is_some() {
        fs::write(processes.folder.path().join("faults"), notes).expect("a file");
        eprintln!("logs of {}: {}", scenario.name, processes.folder.path().display());
        forget(processes.folder);
    }

    let exceeded: Vec<_> = LIMITS.iter().map(|limit| (limit.name, judge(limit, &audit, &losses, scenario))).collect();
    let shares =
        ["bucket", "log", "direct"].map(|limit| audit.share(limit, ended - 7 * SECOND / 2, ended - SECOND / 2));
    let share = shares.into_iter().fold(f64::INFINITY, f64::min);
    // The machine may be busy.
    let has_recovered =
        share > 0.1 && LIMITS.iter().all(|limit| KEYS.iter().any(|key| !audit.jobs(limit.name, key).is_empty()));
    let beyond: Vec<_> = exceeded.iter().filter(|(_, beyond)| beyond.worst > 0).map(|(name, _)| *name).collect();
    let (result, is_expected) = match (scenario.mistake, &beyond[..]) {
        ("", []) if has_recovered => ("held".to_owned(), true),
        ("", []) => (format!("NO RECOVERY {shares:?}"), false),
        ("", _) => (format!("BEYOND: {}", beyond.join(", ")), false),
        (_, []) => ("NOT FOUND".to_owned(), false),
        _ => ("found".to_owned(), true),
    };
    let texts: Vec<_> =
        exceeded.iter().filter(|(_, beyond)| beyond.total > 0).map(|(name, beyond)| text(name, *beyond)).collect();
    let row = vec![
        scenario.name.to_owned(),
        format!("{} s", time.as_secs()),
        count.to_string(),
        losses.len().to_string(),
        audit.admitted.to_string(),
        format!("{} %", 100 * audit.leased / audit.admitted.max(1)),
        audit.failed.to_string(),
        if texts.is_empty() { "0".to_owned() } else { texts.join(", ") },
        format!("{:.0} %", 100.0 * share),
        result,
    ];
    (row, is_expected)
}

/// Returns what a limit's keys exceed at most.
fn judge(limit: &Limit, audit: &Audit, losses: &[(Option<(String, String)>, Loss)], scenario: &Scenario) -> Beyond {
    let mut most = Beyond::default();
    for key in KEYS {
        let is_of_key = |of: &Option<(String, String)>| of.as_ref().is_none_or(|of| of.0 == limit.name && of.1 == key);
        let losses: Vec<_> = losses.iter().filter(|(of, _)| is_of_key(of)).map(|(_, loss)| *loss).collect();
        let hold_expiry = u64::try_from(scenario.hold_expiry.as_micros()).expect("seconds");
        let Beyond { total, allowed, worst } = beyond(limit, audit.jobs(limit.name, key), &losses, hold_expiry);
        most =
            Beyond { total: most.total.max(total), allowed: most.allowed.max(allowed), worst: most.worst.max(worst) };
    }
    most
}

fn text(name: &str, beyond: Beyond) -> String {
    if beyond.allowed > 0 {
        format!("{name} {} (of {})", beyond.total, beyond.allowed)
    } else {
        format!("{name} {}", beyond.total)
    }
}
