//! Mutants that no test can notice, listed one by one in `mutants/equivalent.txt` with the reason.

use std::collections::BTreeMap;
use std::path::Path;

use crate::mutate::Mutant;

/// The listed mutants of the Rust sources and of the Lua scripts.
pub(crate) struct Equivalent {
    /// Whether a mutant has been found, for each key.
    found: BTreeMap<String, bool>,
}

impl Equivalent {
    /// Reads the list: a line that starts with `#` is the reason of the mutants after it.
    pub(crate) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { found: lines.map(|line| (line.to_owned(), false)).collect() }
    }

    /// Returns whether the mutant is listed.
    pub(crate) fn contains(&mut self, mutant: &Mutant) -> bool {
        let found = self.found.get_mut(&mutant.listed_as());
        found.is_some_and(|found| {
            *found = true;
            true
        })
    }

    /// Returns the lines of the folders, and with `lua` of the Lua scripts, that are no mutant of the present sources.
    pub(crate) fn outdated(&self, folders: &[String], lua: bool) -> Vec<&str> {
        let is_searched = |line: &str| {
            let is_of_folder = folders.iter().any(|folder| line.starts_with(folder.as_str()));
            if line.contains(".lua `") { lua } else { is_of_folder }
        };
        let unused = self.found.iter().filter(|&(line, &found)| !found && is_searched(line));
        unused.map(|(line, _)| line.as_str()).collect()
    }
}
