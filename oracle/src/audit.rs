//! What the logs of the processes of one run hold.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use crate::model::{Job, LIMITS, SECOND};

/// The keys that each limit counts.
pub(crate) const KEYS: [&str; 2] = ["a", "b"];

#[derive(Default)]
pub(crate) struct Audit {
    /// By limit and key.
    jobs: BTreeMap<(String, String), Vec<Job>>,
    pub(crate) leased: u64,
    pub(crate) admitted: u64,
    pub(crate) failed: u64,
}

impl Audit {
    /// Reads a log, which the process may not have created yet when it was killed.
    pub(crate) fn read(&mut self, path: &Path) {
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line of a killed process may be cut.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let (mut requests, mut complete, mut failed) = (HashMap::new(), 0, 0);
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("{}: {word}", path.display()));
        for line in whole.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                [kind @ ("a" | "l"), limit, key, begin, end, cost] => {
                    self.add(limit, key, Job { begin: number(begin), end: number(end), cost: number(cost) });
                    self.leased += u64::from(kind == "l");
                }
                ["f", limit, key, id, begin] => drop(requests.insert(id, (limit, key, number(begin), None))),
                ["g", id, end] => {
                    if let Some(request) = requests.get_mut(id) {
                        request.3 = Some(number(end));
                    }
                }
                ["t", time, errors] => (complete, failed) = (number(time), number(errors)),
                _ => panic!("{}: {line}", path.display()),
            }
        }
        self.failed += failed;
        for (limit, key, begin, end) in requests.into_values() {
            // A request without an end was in flight as long as the log is complete.
            self.add(limit, key, Job { begin, end: end.unwrap_or(complete), cost: 1 });
        }
    }

    fn add(&mut self, limit: &str, key: &str, job: Job) {
        self.admitted += 1;
        self.jobs.entry((limit.to_owned(), key.to_owned())).or_default().push(job);
    }

    pub(crate) fn jobs(&self, limit: &str, key: &str) -> &[Job] {
        self.jobs.get(&(limit.to_owned(), key.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Returns the admissions of a limit in a time, as a share of its rate.
    pub(crate) fn share(&self, limit: &str, begin: u64, end: u64) -> f64 {
        let rate = LIMITS.iter().find(|other| other.name == limit).expect("a limit").rate;
        let jobs = KEYS.iter().flat_map(|key| self.jobs(limit, key));
        let admitted: u64 = jobs.filter(|job| (begin..end).contains(&job.end)).map(|job| job.cost).sum();
        admitted as f64 * SECOND as f64 / (rate * (end - begin) * KEYS.len() as u64) as f64
    }
}
