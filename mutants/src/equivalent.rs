//! Mutants that no test can notice: `mutants/equivalent.txt` lists how many of each name may survive, with the reason.

use std::collections::BTreeMap;
use std::path::Path;

use crate::mutate::Mutant;

/// The listed mutants of the Rust sources and of the Lua scripts.
pub(crate) struct Equivalent {
    /// How many mutants of each name may still survive.
    left: BTreeMap<String, u32>,
}

impl Equivalent {
    /// Reads the list: a line that starts with `#` is the reason of the mutants after it.
    pub(crate) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut left = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (number, name) = line.split_once(' ').unwrap_or_else(|| panic!("a number and a name: {line}"));
            let number: u32 = number.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
            *left.entry(name.to_owned()).or_default() += number;
        }
        Self { left }
    }

    /// Returns whether a mutant that no test has noticed is listed.
    pub(crate) fn take(&mut self, mutant: &Mutant) -> bool {
        let left = self.left.get_mut(&mutant.listed_as()).filter(|left| **left > 0);
        left.is_some_and(|left| {
            *left -= 1;
            true
        })
    }

    /// Returns the lines of the folders, and with `lua` of the Lua scripts, of which fewer mutants survive.
    pub(crate) fn outdated(&self, folders: &[String], lua: bool) -> Vec<&str> {
        let is_searched = |name: &str| {
            let is_of_folder = folders.iter().any(|folder| name.starts_with(folder.as_str()));
            if name.contains(".lua `") { lua } else { is_of_folder }
        };
        let unused = self.left.iter().filter(|&(name, &left)| left > 0 && is_searched(name));
        unused.map(|(name, _)| name.as_str()).collect()
    }
}
