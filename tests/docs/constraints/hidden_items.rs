//! No hidden item is needed to extend the crate: `extension_points` implements each public trait that is not sealed, and
//! names none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::ROOT;

/// The hidden methods that have the name of a public method, which the program may call.
const ALSO_PUBLIC: [&str; 1] = ["observe"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect(path)
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(fs::read_to_string(&path).expect("a source"));
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty())
}

/// Returns the names that a source hides: those of the item or of the `use` after each attribute.
fn hidden_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for after in source.split("#[doc(hidden)]").skip(1) {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with(['#', '/', ')']);
        let item: Vec<_> = after.lines().filter(is_code).collect();
        // Attributes of more than one line end before the item starts.
        let starts = ["pub ", "fn ", "const ", "type "];
        let Some(first) = item.iter().position(|line| starts.iter().any(|start| line.trim().starts_with(start))) else {
            continue;
        };
        let item = item[first..].join(" ");
        if let Some(list) = item.strip_prefix("pub use ") {
            let list = list.split(';').next().unwrap_or_default();
            names.extend(words(list).filter(|word| word.starts_with(char::is_uppercase)).map(str::to_owned));
        } else {
            let keywords = ["pub", "crate", "fn", "const", "type", "struct", "enum", "trait", "mod"];
            names.extend(words(&item).find(|word| !keywords.contains(word)).map(str::to_owned));
        }
    }
    names
}

/// Returns the names that the crate hides, without those that are in the list of its public interface.
fn all_hidden_names() -> BTreeSet<String> {
    let mut texts = Vec::new();
    sources(&Path::new(ROOT).join("src"), &mut texts);
    texts.iter().flat_map(|text| hidden_names(text)).filter(|name| !ALSO_PUBLIC.contains(&name.as_str())).collect()
}

/// Returns the public traits that other crates can implement.
fn public_traits(interface: &str) -> BTreeSet<String> {
    let lines = interface.lines().filter_map(|line| line.strip_prefix("pub trait "));
    let open = lines.filter(|line| !line.contains("::sealed::"));
    let paths = open.map(|line| line.split(['<', ' ']).next().expect("a path").trim_end_matches(':'));
    paths.map(|path| path.rsplit("::").next().expect("a name").to_owned()).collect()
}

/// Returns the traits that a program does not implement.
fn not_implemented(program: &str, traits: &BTreeSet<String>) -> Vec<String> {
    let implements = |name: &&String| {
        program.lines().any(|line| {
            line.starts_with("impl") && [" ", "<"].iter().any(|end| line.contains(&format!(" {name}{end}")))
        })
    };
    traits.iter().filter(|name| !implements(name)).cloned().collect()
}

/// Returns the hidden names that a program uses.
fn named_in(program: &str, hidden: &BTreeSet<String>) -> Vec<String> {
    let code: Vec<_> = program.lines().filter(|line| !line.trim().starts_with("//")).collect();
    words(&code.join("\n")).filter(|word| hidden.contains(*word)).map(str::to_owned).collect()
}

#[test]
fn program_with_each_extension_point_names_no_hidden_item() {
    let (program, hidden) = (read("tests/docs/constraints/extension_points.rs"), all_hidden_names());
    for name in ["CostPolicy", "Settle", "decide_in_line", "hash_key", "Fingerprinter", "ReadRetryHint", "MemoryLimits"]
    {
        assert!(hidden.contains(name), "{name} is hidden: {hidden:?}");
    }
    assert_eq!(named_in(&program, &hidden), [""; 0], "use what the documentation shows, or show it");
    let with_hidden =
        program.replace("fn max_reset", "fn decide_in_line").replace("Costs,", "Costs, cost::CostPolicy,");
    assert_eq!(named_in(&with_hidden, &hidden), ["CostPolicy", "decide_in_line"], "the check finds hidden names");
}

#[test]
fn program_implements_each_public_trait_that_is_not_sealed() {
    let traits = public_traits(&read(".ci/public-api.txt"));
    assert!(traits.len() >= 10 && traits.contains("Respond") && !traits.contains("State"), "{traits:?}");
    let program = read("tests/docs/constraints/extension_points.rs");
    assert_eq!(not_implemented(&program, &traits), [""; 0], "extend the program");
    let without = program.replace("impl Clock for", "impl Watch for");
    assert_eq!(not_implemented(&without, &traits), ["Clock"], "the check finds missing implementations");
}
