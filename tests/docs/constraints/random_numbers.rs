//! `src/random.rs` is the only generator of pseudo-random numbers of the sources, the tests and the programs.

use std::fs;
use std::path::Path;

use crate::ROOT;

/// The files that have multipliers of generators for another reason.
const EXCEPTIONS: [&str; 2] = [
    // Keys that cost a nanosecond each: the benchmark measures the decisions.
    "benches/src/memory.rs",
    // The hash of an id.
    "src/store/memory/flights.rs",
];

/// Multipliers of linear congruential and xorshift generators, of PCG, and the mixing of `SplitMix64`. In two parts each, so
/// that this file does not contain them.
const MULTIPLIERS: [(&str, &str); 5] = [
    ("63641362238", "46793005"),
    ("28629335557", "77941757"),
    ("11035", "15245"),
    ("2545f491", "4f6cdd1d"),
    ("bf58476d", "1ce4e5b9"),
];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    let root = Path::new(ROOT);
    for entry in fs::read_dir(root.join(folder)).expect("a folder").map(|entry| entry.expect("an entry")) {
        let path = folder.join(entry.file_name());
        if root.join(&path).is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(root.join(&path)).expect("a source");
            found.push((path.display().to_string(), source.replace('_', "").to_lowercase()));
        }
    }
}

#[test]
fn one_generator_of_random_numbers() {
    let mut files = Vec::new();
    for folder in ["benches/src", "examples", "fuzz/targets", "model/src", "oracle/src", "simulate", "src", "tests"] {
        sources(Path::new(folder), &mut files);
    }
    let has_generator = |(_, source): &&(String, String)| {
        MULTIPLIERS.iter().any(|(start, end)| source.contains(&format!("{start}{end}")))
    };
    let mut found: Vec<_> = files.iter().filter(has_generator).map(|(path, _)| path.as_str()).collect();
    found.sort_unstable();
    assert!(found.contains(&"src/random.rs"), "{found:?}");
    found.retain(|path| *path != "src/random.rs" && !EXCEPTIONS.contains(path));
    assert!(found.is_empty(), "these files generate random numbers: use src/random.rs: {found:?}");
}
