//! The score of each folder, and the mutants that survived.

use std::collections::HashSet;
use std::path::Path;

use crate::evaluate::{Outcome, Result};
use crate::mutate::Mutants;

/// Prints the scores, and what is not mutated.
pub(crate) fn print(results: &[Result], mutants: &Mutants, sample: Option<usize>) {
    if let Some(sample) = sample {
        println!("\nA sample of {sample} mutants of each folder.");
    }
    println!("\n| Folder | Mutants | Equivalent | Killed | Timed out | Survived | Not reached | Score |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut folders: Vec<_> = results.iter().map(|result| result.folder.as_str()).collect();
    folders.dedup();
    for folder in folders {
        let count =
            |outcome| results.iter().filter(|result| result.folder == folder && result.outcome == outcome).count();
        let [killed, timed_out, survived, not_reached] =
            [Outcome::Killed, Outcome::TimedOut, Outcome::Survived, Outcome::NotReached].map(count);
        let equivalent = count(Outcome::Equivalent);
        let different = killed + timed_out + survived + not_reached;
        let score = (killed + timed_out) as f64 * 100.0 / different as f64;
        let total = different + equivalent;
        println!(
            "| `{folder}` | {total} | {equivalent} | {killed} | {timed_out} | {survived} | {not_reached} | {score:.1} % |"
        );
    }
    println!("\nNot mutated: {:?}; {} mutants do not compile", mutants.skipped, mutants.left_out);
}

/// Reads which mutants a report calls killed.
pub(crate) fn killed(path: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let killed = text.lines().filter_map(|line| line.strip_prefix("killed: ").or(line.strip_prefix("timed out: ")));
    killed.map(str::to_owned).collect()
}

/// Writes a line for each mutant.
pub(crate) fn write(results: &[Result], path: &Path) {
    let lines: String = results.iter().map(|result| result.line() + "\n").collect();
    std::fs::write(path, lines).unwrap_or_else(|error| panic!("writing {} failed: {error}", path.display()));
    println!("All mutants: {}", path.display());
}
