//! Runs contestants in alternating rounds, and prints medians and ratios, with the quartiles of the ratios.

use std::hint::black_box;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

pub(crate) struct Harness {
    quick: bool,
    format: Format,
    filters: Vec<String>,
}

/// The output format.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Lines,
    /// One JSON object per scenario.
    Json,
    /// Rows of a Markdown table.
    Table,
}

/// A unit, and the value of each contestant in this unit. The first contestant is this crate.
pub(crate) type Measurements<'a> = (&'a str, &'a [(&'a str, f64)]);

/// A participant of a scenario: a name, and a function that creates a worker for a thread.
pub(crate) struct Contestant<'a> {
    name: &'static str,
    worker: Box<dyn Fn(usize) -> Worker<'a> + Sync + 'a>,
}

/// Makes the given number of decisions.
type Worker<'a> = Box<dyn FnMut(u64) + Send + 'a>;

impl<'a> Contestant<'a> {
    /// Creates a contestant. `worker(thread)` returns a closure that makes the given number of decisions.
    pub(crate) fn new<W: FnMut(u64) + Send + 'a>(name: &'static str, worker: impl Fn(usize) -> W + Sync + 'a) -> Self {
        Self { name, worker: Box::new(move |thread| Box::new(worker(thread))) }
    }
}

impl Harness {
    pub(crate) fn from_args() -> Self {
        let mut harness = Self { quick: false, format: Format::Lines, filters: Vec::new() };
        for arg in std::env::args().skip(1) {
            match arg.as_str() {
                "--quick" => harness.quick = true,
                "--json" => harness.format = Format::Json,
                "--table" => harness.format = Format::Table,
                // cargo passes this argument.
                "--bench" => {}
                filter if !filter.starts_with('-') => harness.filters.push(filter.to_owned()),
                other => {
                    eprintln!("unknown option {other}: pass --quick, --json, --table, or parts of scenario names");
                    std::process::exit(2);
                }
            }
        }
        if harness.format == Format::Table {
            println!("| Scenario | Unit | This crate | Others (ratio) |\n|---|---|---|---|");
        }
        harness
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| scenario.contains(filter))
    }

    /// Whether a filter is the whole name of the scenario.
    pub(crate) fn wants_explicitly(&self, scenario: &str) -> bool {
        self.filters.iter().any(|filter| filter == scenario)
    }

    /// Runs the contestants in alternating rounds on `threads` threads, and prints their nanoseconds per decision.
    ///
    /// Each round starts with another contestant. A ratio is the median of the ratios of the rounds. If a contestant
    /// is named `bare`, also prints what the others add to it.
    pub(crate) fn compare(&self, scenario: &str, threads: usize, contestants: &[Contestant<'_>]) {
        if !self.wants(scenario) {
            return;
        }
        let times = measure(contestants, threads, self.quick);
        self.report_times(scenario, &json!({ "threads": threads }), contestants, &times);
    }

    /// As [`compare`](Self::compare), with the medians of several processes in place of rounds: a contestant that is
    /// slow in a part of all processes, by the addresses of its memory, is so in a part of these values.
    ///
    /// `variable` names the scenario to the child processes, which print what [`measure_medians`] returns.
    pub(crate) fn compare_processes(&self, scenario: &str, variable: &str, contestants: &[Contestant<'_>]) {
        if !self.wants(scenario) {
            return;
        }
        let processes = if self.quick { 3 } else { 10 };
        let mut times = vec![Vec::new(); contestants.len()];
        for _ in 0..processes {
            let this = std::env::current_exe().expect("this program");
            let output = Command::new(this).env(variable, scenario).output().expect("a process");
            let medians: Vec<f64> = serde_json::from_slice(&output.stdout).expect("the medians");
            times.iter_mut().zip(medians).for_each(|(times, median)| times.push(median));
        }
        self.report_times(scenario, &json!({ "threads": 1, "processes": processes }), contestants, &times);
    }

    /// Prints times, and if a contestant is named `bare` what the others add to it.
    fn report_times(&self, scenario: &str, about: &Value, contestants: &[Contestant<'_>], times: &[Vec<f64>]) {
        let names: Vec<_> = contestants.iter().map(|contestant| contestant.name).collect();
        self.report_rounds(scenario, about, "ns", &names, times);
        if let Some(bare) = names.iter().position(|&name| name == "bare") {
            let names: Vec<_> = names.iter().copied().filter(|&name| name != "bare").collect();
            let added = times.iter().enumerate().filter(|&(index, _)| index != bare);
            let without_bare = |of: &Vec<f64>| of.iter().zip(&times[bare]).map(|(all, bare)| all - bare).collect();
            let added: Vec<Vec<f64>> = added.map(|(_, of)| without_bare(of)).collect();
            self.report_rounds(scenario, about, "ns added", &names, &added);
        }
    }

    /// Prints the medians of values that were measured in rounds, and the quartiles of the ratios of the rounds.
    pub(crate) fn report_rounds(&self, scenario: &str, about: &Value, unit: &str, names: &[&str], rounds: &[Vec<f64>]) {
        let medians: Vec<_> = names.iter().copied().zip(rounds.iter().map(|values| median(values.clone()))).collect();
        let ratios: Vec<_> = rounds.iter().map(|values| Ratio::of_rounds(&rounds[0], values)).collect();
        self.print(scenario, about, unit, &medians, &ratios);
    }

    /// Prints two values of each contestant.
    pub(crate) fn report_two(&self, scenario: &str, about: Value, values: [Measurements<'_>; 2]) {
        self.report_all(scenario, &about, &values);
    }

    /// Prints values that the caller measured.
    pub(crate) fn report(&self, scenario: &str, about: Value, unit: &str, values: &[(&str, f64)]) {
        self.report_all(scenario, &about, &[(unit, values)]);
    }

    /// Prints values in several units, with the ratio of the first contestant's value to each other value.
    pub(crate) fn report_all(&self, scenario: &str, about: &Value, units: &[Measurements<'_>]) {
        for (unit, values) in units {
            let ours = values.first().map_or(f64::NAN, |&(_, value)| value);
            let ratios: Vec<_> = values.iter().map(|&(_, value)| Ratio::of_values(ours, value)).collect();
            self.print(scenario, about, unit, values, &ratios);
        }
    }

    fn print(&self, scenario: &str, about: &Value, unit: &str, values: &[(&str, f64)], ratios: &[Ratio]) {
        if self.format == Format::Json {
            let mut object = Map::new();
            object.insert("scenario".to_owned(), json!(scenario));
            object.extend(about.as_object().cloned().unwrap_or_default());
            let by_name = values.iter().map(|&(name, value)| (name.to_owned(), json!(rounded(value))));
            object.insert(unit.to_owned(), Value::Object(by_name.collect()));
            let by_name = values.iter().zip(ratios).map(|(&(name, _), ratio)| (name.to_owned(), ratio.to_json()));
            object.insert("ratio".to_owned(), Value::Object(by_name.collect()));
            println!("{}", Value::Object(object));
            return;
        }
        let about: Vec<_> =
            about.as_object().into_iter().flatten().map(|(name, value)| format!("{name} {value}")).collect();
        let ours = rounded(values.first().map_or(f64::NAN, |&(_, value)| value));
        let others = values.iter().zip(ratios).skip(1);
        let others: Vec<_> =
            others.map(|(&(name, value), ratio)| format!("{name} {} ({ratio})", rounded(value))).collect();
        let name = values.first().map_or("", |&(name, _)| name);
        if self.format == Format::Table {
            let about: String = about.iter().map(|about| format!(", {about}")).collect();
            let name = if name == "ours" { String::new() } else { format!(" ({name})") };
            println!("| {scenario}{about} | {unit} | **{ours}**{name} | {} |", others.join(", "));
        } else {
            let others: String = others.iter().map(|other| format!("  {other}")).collect();
            println!("{scenario:<34} {:<10}  {name} {ours}{others}  [{unit}]", about.join(", "));
        }
    }
}

/// A ratio of our value to another one: the median of all rounds, and the quartiles.
struct Ratio {
    median: f64,
    quartiles: Option<[f64; 2]>,
}

impl Ratio {
    fn of_values(ours: f64, other: f64) -> Self {
        Self { median: ours / other, quartiles: None }
    }

    fn of_rounds(ours: &[f64], others: &[f64]) -> Self {
        let mut ratios: Vec<_> = ours.iter().zip(others).map(|(ours, other)| ours / other).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |quarter: usize| ratios[(ratios.len() - 1) * quarter / 4];
        Self { median: at(2), quartiles: Some([at(1), at(3)]) }
    }

    fn to_json(&self) -> Value {
        json!({ "median": self.median, "quartiles": self.quartiles })
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2}x", self.median)?;
        match self.quartiles {
            Some([low, high]) => write!(f, ", {low:.2}-{high:.2}"),
            None => Ok(()),
        }
    }
}

fn rounded(value: f64) -> f64 {
    if value.abs() < 10.0 { (value * 100.0).round() / 100.0 } else { (value * 10.0).round() / 10.0 }
}

/// Returns the nanoseconds per decision of each contestant in each round.
fn measure(contestants: &[Contestant<'_>], threads: usize, is_quick: bool) -> Vec<Vec<f64>> {
    let rounds = if is_quick { 5 } else { 15 };
    let span = Duration::from_millis(if is_quick { 20 } else { 150 });
    let batches: Vec<u64> = contestants.iter().map(|contestant| batch_for(contestant, span)).collect();
    let mut times = vec![Vec::with_capacity(rounds); contestants.len()];
    for number in 0..rounds {
        for index in (0..contestants.len()).map(|index| (index + number) % contestants.len()) {
            times[index].push(round(&contestants[index], threads, batches[index]));
        }
    }
    times
}

/// Returns the median nanoseconds of each contestant, of quick rounds: one process of several.
pub(crate) fn measure_medians(contestants: &[Contestant<'_>]) -> Vec<f64> {
    measure(contestants, 1, true).into_iter().map(median).collect()
}

/// Returns the number of decisions of this contestant that take about `span` on one thread.
fn batch_for(contestant: &Contestant<'_>, span: Duration) -> u64 {
    let mut worker = (contestant.worker)(0);
    worker(1_000);
    let started = Instant::now();
    worker(10_000);
    let each = started.elapsed().as_secs_f64() / 10_000.0;
    ((span.as_secs_f64() / each) as u64).max(1_000)
}

/// Runs one round, and returns the mean nanoseconds that a thread spends on a decision.
fn round(contestant: &Contestant<'_>, threads: usize, batch: u64) -> f64 {
    let barrier = Barrier::new(threads);
    let timed = |thread: usize| {
        let mut worker = (contestant.worker)(thread);
        barrier.wait();
        // One thread waits for no other, so its processor time is the time on an idle machine.
        let now = if threads == 1 { thread_time } else { wall_time };
        let started = now();
        worker(black_box(batch));
        (now() - started) * 1e9 / batch as f64
    };
    thread::scope(|scope| {
        let timed = &timed;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        let mine = timed(0);
        let all = others.into_iter().map(|other| other.join().expect("a worker")).chain([mine]);
        all.sum::<f64>() / threads as f64
    })
}

/// Returns the processor time of this thread in seconds.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the time of the monotonic clock in seconds.
fn wall_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
