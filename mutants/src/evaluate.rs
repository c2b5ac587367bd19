//! Runs the tests with each mutant.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::Options;
use crate::equivalent::Equivalent;
use crate::lua;
use crate::mutate::{Mutant, Mutants};
use crate::random::Random;
use crate::tests::{End, Runner, Test};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Killed,
    TimedOut,
    Survived,
    /// No test reaches the mutant.
    NotReached,
    /// No test can notice the mutant: see `mutants/equivalent.txt`.
    Equivalent,
}

pub(crate) struct Result {
    pub(crate) mutant: Mutant,
    pub(crate) folder: String,
    pub(crate) outcome: Outcome,
}

pub(crate) struct Evaluation<'a> {
    pub(crate) runner: Runner<'a>,
    pub(crate) tests: Vec<Test>,
    pub(crate) scratch: PathBuf,
    pub(crate) options: &'a Options,
    pub(crate) results: Vec<Result>,
    pub(crate) equivalent: Mutex<Equivalent>,
    /// The lines of the mutants that the previous run killed, with `--again`.
    pub(crate) killed: HashSet<String>,
}

/// How much time the tests of each stage take together. Most mutants fail in the first stage.
const STAGES: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(8), Duration::MAX];

impl Evaluation<'_> {
    pub(crate) fn rust(&mut self, mutants: &Mutants) {
        let mut reaching: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, test) in self.tests.iter().enumerate() {
            for &number in &test.reached {
                reaching.entry(number).or_default().push(index);
            }
        }
        for folder in &self.options.folders {
            let mutants: Vec<_> = mutants.list.iter().filter(|mutant| mutant.file.starts_with(folder)).collect();
            let chosen = self.choose(mutants);
            let evaluate = |mutant: &Mutant, likely: &Likely| {
                let tests = reaching.get(&mutant.number).map_or(&[][..], Vec::as_slice);
                self.evaluate(tests, &mutant.function, ("MUTANT", &mutant.number.to_string()), likely)
            };
            let results = self.all(&chosen, folder, |mutant| mutant, evaluate);
            self.results.extend(results);
        }
    }

    pub(crate) fn lua(&mut self, repository: &Path) {
        let mutants = lua::mutants(repository);
        let chosen = self.choose(mutants.iter().collect());
        let evaluate = |mutant: &lua::LuaMutant, likely: &Likely| {
            let sends = |test: &Test| test.scripts.iter().any(|script| script.contains(&mutant.original));
            let tests: Vec<_> = (0..self.tests.len()).filter(|&index| sends(&self.tests[index])).collect();
            let file = self.scratch.join(format!("lua-{}", mutant.mutant.number));
            std::fs::write(&file, format!("{}\0{}", mutant.original, mutant.mutated)).expect("written");
            let path = file.to_str().expect("a path in UTF-8");
            let outcome = self.evaluate(&tests, &mutant.mutant.file, ("MUTANT_LUA", path), likely);
            std::fs::remove_file(&file).expect("removed");
            outcome
        };
        let results = self.all(&chosen, "Lua", |mutant| &mutant.mutant, evaluate);
        self.results.extend(results);
    }

    /// Takes the sample and the mutants that `--only` names.
    fn choose<'m, M: Line>(&self, mut mutants: Vec<&'m M>) -> Vec<&'m M> {
        if let Some(only) = &self.options.only {
            mutants.retain(|mutant| mutant.line().contains(only.as_str()));
        }
        let Some(sample) = self.options.sample else { return mutants };
        // A sample depends on the seed and on the mutants only.
        let mut keyed: Vec<_> = Random::new(self.options.seed).zip(mutants).collect();
        keyed.sort_by_key(|&(key, _)| key);
        keyed.into_iter().take(sample).map(|(_, mutant)| mutant).collect()
    }

    fn all<M: Sync>(
        &self,
        mutants: &[&M],
        folder: &str,
        describe: impl Fn(&M) -> &Mutant + Sync,
        evaluate: impl Fn(&M, &Likely) -> Outcome + Sync,
    ) -> Vec<Result> {
        let (next, results, likely) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Likely::default());
        std::thread::scope(|scope| {
            for _ in 0..self.options.workers {
                scope.spawn(|| {
                    while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let is_killed = self.killed.contains(&describe(mutant).line());
                        let outcome = if is_killed { Outcome::Killed } else { evaluate(mutant, &likely) };
                        let outcome = self.listed(describe(mutant), outcome);
                        let result = Result { mutant: describe(mutant).clone(), folder: folder.to_owned(), outcome };
                        if outcome > Outcome::Killed && outcome < Outcome::Equivalent {
                            // The second line is the one to list if no law can notice the mutant, and its source.
                            println!(
                                "{}\n    {}\n    {}",
                                result.line(),
                                result.mutant.listed_as(),
                                result.mutant.source
                            );
                        }
                        let mut results = results.lock().expect("no panic");
                        results.push(result);
                        if results.len().is_multiple_of(50) {
                            println!("{folder}: {} of {}", results.len(), mutants.len());
                        }
                    }
                });
            }
        });
        let mut results = results.into_inner().expect("no panic");
        results.sort_by_key(|result| result.mutant.number);
        results
    }

    /// Returns the outcome of a mutant that may be listed.
    fn listed(&self, mutant: &Mutant, outcome: Outcome) -> Outcome {
        let is_listed = outcome > Outcome::Killed && self.equivalent.lock().expect("no panic").take(mutant);
        if is_listed { Outcome::Equivalent } else { outcome }
    }

    /// Runs the tests that reach a mutant, the fastest and those that noticed others of the same place first.
    fn evaluate(&self, tests: &[usize], place: &str, mutant: (&str, &str), likely: &Likely) -> Outcome {
        if tests.is_empty() {
            return Outcome::NotReached;
        }
        let mut tests = tests.to_vec();
        likely.sort(place, &mut tests, |index| self.tests[index].time);
        let mut left = self.options.budget.map_or(Duration::MAX, Duration::from_secs);
        let within_budget = tests.iter().take_while(|&&index| {
            let fits = !left.is_zero();
            left = left.saturating_sub(self.tests[index].time);
            fits
        });
        let mut tests = &tests[..within_budget.count()];
        for stage in STAGES {
            let mut sum = Duration::ZERO;
            let count = tests.iter().take_while(|&&index| {
                let fits = sum < stage;
                sum += self.tests[index].time;
                fits
            });
            let (now, later) = tests.split_at(count.count());
            tests = later;
            if now.is_empty() {
                break;
            }
            // One process per binary: a test of its own process would start more processes than it saves.
            let run: Vec<_> = now.iter().map(|&index| &self.tests[index]).collect();
            match self.runner.run(&run, mutant) {
                End::Passed => {}
                End::Failed => {
                    likely.count(place, now);
                    return Outcome::Killed;
                }
                End::TimedOut => return Outcome::TimedOut,
            }
        }
        Outcome::Survived
    }
}

/// How often the tests of a stage noticed mutants of each place.
#[derive(Default)]
struct Likely(Mutex<BTreeMap<(String, usize), u32>>);

impl Likely {
    fn count(&self, place: &str, tests: &[usize]) {
        let mut counts = self.0.lock().expect("no panic");
        // A small stage says more about each of its tests.
        for &test in tests.iter().filter(|_| tests.len() <= 12) {
            *counts.entry((place.to_owned(), test)).or_default() += 1;
        }
    }

    fn sort(&self, place: &str, tests: &mut [usize], time: impl Fn(usize) -> Duration) {
        let counts = self.0.lock().expect("no panic");
        tests.sort_by_key(|&test| {
            let count = counts.get(&(place.to_owned(), test)).copied().unwrap_or(0);
            time(test) / (1 + count)
        });
    }
}

/// A mutant's line in the report.
pub(crate) trait Line {
    fn line(&self) -> String;
}

impl Line for Mutant {
    fn line(&self) -> String {
        format!("{}:{}:{}: {} in `{}`", self.file, self.line, self.column, self.change, self.function)
    }
}

impl Line for lua::LuaMutant {
    fn line(&self) -> String {
        self.mutant.line()
    }
}

impl Result {
    pub(crate) fn line(&self) -> String {
        let outcome = match self.outcome {
            Outcome::Killed => "killed",
            Outcome::TimedOut => "timed out",
            Outcome::Survived => "survived",
            Outcome::NotReached => "not reached",
            Outcome::Equivalent => "equivalent",
        };
        format!("{outcome}: {}", self.mutant.line())
    }
}
