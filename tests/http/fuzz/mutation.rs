//! Runs a check on a corpus, and on its inputs with a few changed bytes.

use std::path::Path;
use std::{env, fs};

#[path = "../../../src/random.rs"]
mod random;

use random::Random;

/// Returns a byte with a meaning for the parser, more frequent than at random.
fn byte(random: &mut Random, likely: &[u8]) -> u8 {
    match random.below(3) {
        0 => u8::try_from(random.below(256)).expect("a byte"),
        _ => random.choose(likely),
    }
}

fn change(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>], likely: &[u8]) {
    let position = random.index(input.len() + 1);
    match random.below(6) {
        0 | 1 => input.insert(position, byte(random, likely)),
        2 if position < input.len() => input[position] = byte(random, likely),
        3 if position < input.len() => drop(input.remove(position)),
        4 => input.truncate(position),
        _ => {
            let other = &corpus[random.index(corpus.len())];
            let start = random.index(other.len());
            let end = start + random.index(other.len() - start) + 1;
            drop(input.splice(position..position, other[start..end].iter().copied()));
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number: {text:?}")))
}

/// Returns the inputs in `fuzz/corpus`, in the order of their names.
fn corpus_of(target: &str) -> Vec<Vec<u8>> {
    // A member of the workspace uses this file too: its folder is below the root.
    let is_root = |folder: &&Path| folder.join("fuzz/corpus").is_dir();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(is_root).expect("the corpora");
    let folder = root.join("fuzz/corpus").join(target);
    let inputs = folder.read_dir().unwrap_or_else(|error| panic!("no corpus {}: {error}", folder.display()));
    let mut paths: Vec<_> = inputs.map(|input| input.expect("a file").path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).expect("an input")).collect();
    assert!(!inputs.is_empty() && inputs.iter().all(|input| !input.is_empty()), "the corpus {target} has empty inputs");
    inputs
}

/// Runs `check` on the corpus of the target, and on `rounds` mutations of it.
pub(crate) fn fuzz(target: &str, likely: &[u8], rounds: u64, check: fn(&[u8])) {
    let corpus = corpus_of(target);
    let seed = setting("FUZZ_SEED", 1);
    let run = |round, input: &[u8]| {
        // Printed if the check panics.
        let context = FailureContext { seed, round, input };
        check(input);
        std::mem::forget(context);
    };
    for input in &corpus {
        run(0, input);
    }
    let mut random = Random::new(seed);
    for round in 1..=setting("FUZZ_ROUNDS", rounds) {
        let mut input = corpus[random.index(corpus.len())].clone();
        for _ in 0..=random.below(8) {
            change(&mut random, &mut input, &corpus, likely);
        }
        run(round, &input);
    }
}

struct FailureContext<'a> {
    seed: u64,
    /// 0 for an input of the corpus.
    round: u64,
    input: &'a [u8],
}

impl Drop for FailureContext<'_> {
    fn drop(&mut self) {
        eprintln!("seed {}, round {}: \"{}\"", self.seed, self.round, self.input.escape_ascii());
    }
}
