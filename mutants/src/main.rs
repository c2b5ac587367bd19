//! Mutation testing: changes the sources in many small ways, and counts the changes that no test notices.
//!
//! One build contains all mutants of the Rust sources, and a test process activates one of them. First each test runs
//! once without a mutant and records which mutants it reaches. A mutant then runs only the tests that reach it, the
//! fastest first, until one fails.

mod copy;
mod equivalent;
mod evaluate;
mod lua;
mod mutate;
mod operators;
#[path = "../../src/random.rs"]
mod random;
mod report;
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;

use crate::copy::Copy;
use crate::equivalent::Equivalent;
use crate::evaluate::Evaluation;
use crate::tests::{Runner, Test};

const HELP: &str = "\
scripts/mutants [OPTIONS] [FOLDER..]

Folders are src/algorithm, src/limiter, src/store/memory (the default), or others; `lua` is all Lua scripts.

--sample N     takes N mutants of each folder instead of all
--seed N       chooses the sample (default 1)
--cases N      random cases of each property test (default 48)
--tests A,B    the test binaries, `lib` for the unit tests (default: those that fit the folders)
--budget N     seconds of tests per mutant, by their times without a mutant (default: all tests that reach it)
--only TEXT    only mutants whose line in the report contains the text
--again        runs no tests for the mutants that the previous run killed: after more tests have been written
--workers N    test processes at once (default 2)
";

/// The Redis tests that run, by the start of their names. Others test connections and faults.
const REDIS: [&str; 16] = [
    "basics::",
    "clock::",
    "differential::",
    "faults::invalid_state_bytes",
    "faults::key_of_another_type",
    "holds::",
    "in_flight::",
    "lease_law::",
    "lease_operations::",
    "leases::",
    "lua::",
    "batch_work::",
    "script_model::",
    "script_values::",
    "sliding_log::",
    "ttl::",
];
/// Tests that take too long to run once for each mutant.
const SLOW: [&str; 6] = [
    "agree_with_one_limiter",
    "eviction::bucket_stays",
    "eviction::carry_over_never",
    "eviction::deny_policy_never",
    "eviction::flood_of",
    "eviction::window_stays",
];

struct Options {
    folders: Vec<String>,
    lua: bool,
    sample: Option<usize>,
    seed: u64,
    cases: String,
    tests: Option<String>,
    budget: Option<u64>,
    only: Option<String>,
    again: bool,
    workers: usize,
}

impl Options {
    /// Returns the integration tests that run.
    fn binaries(&self) -> Vec<&str> {
        if let Some(tests) = &self.tests {
            return tests.split(',').collect();
        }
        let has = |start: &str| self.folders.iter().any(|folder| folder.starts_with(start));
        let all = [
            ("lib", !self.folders.is_empty()),
            ("algorithms", !self.folders.is_empty()),
            ("memory", !self.folders.is_empty()),
            ("middleware", has("src/limiter")),
            ("redis", self.lua || has("src/algorithm")),
        ];
        all.into_iter().filter_map(|(name, is_used)| is_used.then_some(name)).collect()
    }
}

fn options() -> Result<Options, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options {
        folders: Vec::new(),
        lua: false,
        sample: None,
        seed: 1,
        cases: "48".to_owned(),
        tests: None,
        budget: None,
        only: None,
        again: false,
        workers: 2,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("sample") => options.sample = Some(parser.value()?.parse()?),
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("cases") => options.cases = parser.value()?.string()?,
            Long("tests") => options.tests = Some(parser.value()?.string()?),
            Long("budget") => options.budget = Some(parser.value()?.parse()?),
            Long("only") => options.only = Some(parser.value()?.string()?),
            Long("again") => options.again = true,
            Long("workers") => options.workers = parser.value()?.parse()?,
            Long("help") => {
                print!("{HELP}");
                std::process::exit(0);
            }
            Value(folder) if folder == "lua" => options.lua = true,
            Value(folder) => options.folders.push(folder.string()?),
            _ => return Err(argument.unexpected()),
        }
    }
    if options.folders.is_empty() && !options.lua {
        options.folders = ["algorithm", "table", "limiter", "store/memory"].map(|name| format!("src/{name}")).into();
    }
    for folder in &mut options.folders {
        *folder = format!("{}/", folder.trim_end_matches('/'));
    }
    Ok(options)
}

fn main() {
    let options = options().unwrap_or_else(|error| {
        eprintln!("mutants: {error}; use mutants --help");
        std::process::exit(2);
    });
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned();
    let scratch = repository.join("target/mutants");
    let copy = Copy::new(&repository, &scratch.join("crate"));
    let names = options.binaries();
    let (mutants, binaries) = copy.build(&options.folders, &names);
    let runner = Runner { binaries: &binaries, folder: &copy.folder, cases: &options.cases };
    let tests = record(&runner, &scratch, &options);
    let report = scratch.join("report.txt");
    let killed = if options.again { report::killed(&report) } else { HashSet::new() };
    let equivalent = Mutex::new(Equivalent::read(&repository.join("mutants/equivalent.txt")));
    let mut evaluation =
        Evaluation { runner, tests, scratch, options: &options, results: Vec::new(), equivalent, killed };
    evaluation.rust(&mutants);
    if options.lua {
        evaluation.lua(&repository);
    }
    report::print(&evaluation.results, &mutants, options.sample);
    if options.sample.is_none() && options.only.is_none() {
        let equivalent = evaluation.equivalent.into_inner().expect("no panic");
        for line in equivalent.outdated(&options.folders, options.lua) {
            println!("Fewer survive than mutants/equivalent.txt lists: {line}");
        }
    }
    if options.only.is_none() {
        report::write(&evaluation.results, &report);
    }
}

/// Runs each test once without a mutant.
fn record(runner: &Runner<'_>, scratch: &Path, options: &Options) -> Vec<Test> {
    let only_redis = options.lua && options.folders.is_empty();
    // Of the unit tests those beside the code: `src/store/memory/` has those of `store::memory::`.
    let modules: Vec<_> = options.folders.iter().map(|folder| folder["src/".len()..].replace('/', "::")).collect();
    let mut tests = Vec::new();
    let mut unused = Vec::new();
    for (index, binary) in runner.binaries.iter().enumerate() {
        if only_redis && binary.name != "redis" {
            continue;
        }
        for name in runner.names(index) {
            let is_used = match binary.name.as_str() {
                "redis" => REDIS.iter().any(|start| name.starts_with(start)),
                "lib" => modules.iter().any(|module| name.starts_with(module.as_str())),
                _ => true,
            };
            if !is_used || SLOW.iter().any(|slow| name.contains(slow)) {
                continue;
            }
            match runner.record(index, &name, scratch) {
                Some(test) => tests.push(test),
                None => unused.push(format!("{}: {name}", binary.name)),
            }
        }
    }
    println!("{} tests; not used, because they fail or take too long: {unused:?}", tests.len());
    tests
}
