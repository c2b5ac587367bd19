//! Rounds in turn, medians, ratios.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

pub(crate) struct Harness {
    quick: bool,
    form: Form,
    filters: Vec<String>,
}

/// How figures are told.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Lines,
    /// One object a scenario.
    Json,
    /// Rows of a table in Markdown.
    Table,
}

/// A unit, and the figures of each contender in it: ours is the first.
pub(crate) type LimitSnapshot<'a> = (&'a str, &'a [(&'a str, f64)]);

/// One that takes part in a scenario: a name, and what makes a worker for a thread.
pub(crate) struct Contender<'a> {
    name: &'static str,
    worker: Box<dyn Fn(usize) -> Worker<'a> + Sync + 'a>,
}

/// Makes so many decisions.
type Worker<'a> = Box<dyn FnMut(u64) + Send + 'a>;

impl<'a> Contender<'a> {
    /// `worker(thread)` makes a closure that makes so many decisions.
    pub(crate) fn new<W: FnMut(u64) + Send + 'a>(name: &'static str, worker: impl Fn(usize) -> W + Sync + 'a) -> Self {
        Self { name, worker: Box::new(move |thread| Box::new(worker(thread))) }
    }
}

impl Harness {
    pub(crate) fn from_args() -> Self {
        let mut harness = Self { quick: false, form: Form::Lines, filters: Vec::new() };
        for arg in std::env::args().skip(1) {
            match arg.as_str() {
                "--quick" => harness.quick = true,
                "--json" => harness.form = Form::Json,
                "--table" => harness.form = Form::Table,
                // cargo passes it.
                "--bench" => {}
                filter if !filter.starts_with('-') => harness.filters.push(filter.to_owned()),
                other => {
                    eprintln!(
                        "unknown option {other}: there are --quick, --json, --table and parts of the scenarios' names"
                    );
                    std::process::exit(2);
                }
            }
        }
        if harness.form == Form::Table {
            println!("| Scenario | | Ours | Beside it |\n|---|---|---|---|");
        }
        harness
    }

    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| scenario.contains(filter))
    }

    /// Runs the contenders in turn on so many threads, and tells their nanoseconds a decision.
    pub(crate) fn compare(&self, scenario: &str, threads: usize, contenders: &[Contender<'_>]) {
        if !self.wants(scenario) {
            return;
        }
        let rounds = if self.quick { 5 } else { 15 };
        let span = Duration::from_millis(if self.quick { 20 } else { 150 });
        let batches: Vec<u64> = contenders.iter().map(|contender| batch_for(contender, span)).collect();
        let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
        for _ in 0..rounds {
            for ((contender, &batch), times) in contenders.iter().zip(&batches).zip(&mut times) {
                times.push(round(contender, threads, batch));
            }
        }
        let medians: Vec<_> = contenders.iter().map(|c| c.name).zip(times.into_iter().map(median)).collect();
        self.report(scenario, json!({ "threads": threads }), "ns", &medians);
    }

    /// Tells two figures of each contender.
    pub(crate) fn report_two(&self, scenario: &str, about: Value, figures: [LimitSnapshot<'_>; 2]) {
        self.report_all(scenario, &about, &figures);
    }

    /// Tells figures that were measured elsewhere.
    pub(crate) fn report(&self, scenario: &str, about: Value, unit: &str, figures: &[(&str, f64)]) {
        self.report_all(scenario, &about, &[(unit, figures)]);
    }

    /// Tells figures in several units, the first contender's also in relation to each other one's.
    pub(crate) fn report_all(&self, scenario: &str, about: &Value, units: &[LimitSnapshot<'_>]) {
        if self.form == Form::Json {
            let mut object = Map::new();
            object.insert("scenario".to_owned(), json!(scenario));
            object.extend(about.as_object().cloned().unwrap_or_default());
            for (unit, figures) in units {
                let by_name = figures.iter().map(|&(name, figure)| (name.to_owned(), json!(rounded(figure))));
                object.insert((*unit).to_owned(), Value::Object(by_name.collect()));
            }
            println!("{}", Value::Object(object));
            return;
        }
        let about: Vec<_> =
            about.as_object().into_iter().flatten().map(|(name, value)| format!("{name} {value}")).collect();
        for (unit, figures) in units {
            let ours = figures.first().map_or(f64::NAN, |&(_, figure)| figure);
            let others: Vec<_> = figures.iter().skip(1).map(|&(name, figure)| beside(name, ours, figure)).collect();
            let name = figures.first().map_or("", |&(name, _)| name);
            if self.form == Form::Table {
                let about: String = about.iter().map(|about| format!(", {about}")).collect();
                let name = if name == "ours" { String::new() } else { format!(" ({name})") };
                println!("| {scenario}{about} | {unit} | **{}**{name} | {} |", rounded(ours), others.join(", "));
            } else {
                let others: String = others.iter().map(|other| format!("  {other}")).collect();
                println!("{scenario:<34} {:<10}  {name} {}{others}  [{unit}]", about.join(", "), rounded(ours));
            }
        }
    }
}

/// A contender's figure, and ours in relation to it.
fn beside(name: &str, ours: f64, figure: f64) -> String {
    format!("{name} {} ({:.2}x)", rounded(figure), ours / figure)
}

fn rounded(figure: f64) -> f64 {
    if figure.abs() < 10.0 { (figure * 100.0).round() / 100.0 } else { (figure * 10.0).round() / 10.0 }
}

/// How many decisions of this contender take about so long on one thread.
fn batch_for(contender: &Contender<'_>, span: Duration) -> u64 {
    let mut worker = (contender.worker)(0);
    worker(1_000);
    let started = Instant::now();
    worker(10_000);
    let each = started.elapsed().as_secs_f64() / 10_000.0;
    ((span.as_secs_f64() / each) as u64).max(1_000)
}

/// Nanoseconds that a thread spends on a decision.
fn round(contender: &Contender<'_>, threads: usize, batch: u64) -> f64 {
    let barrier = Barrier::new(threads);
    let timed = |thread: usize| {
        let mut worker = (contender.worker)(thread);
        barrier.wait();
        let started = Instant::now();
        worker(black_box(batch));
        started.elapsed().as_secs_f64() * 1e9 / batch as f64
    };
    thread::scope(|scope| {
        let timed = &timed;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        let mine = timed(0);
        let all = others.into_iter().map(|other| other.join().expect("a worker")).chain([mine]);
        all.sum::<f64>() / threads as f64
    })
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
