//! What the tests of examples with a file of limits share: the file, and the parts of an answer.

use std::fs;
use std::path::PathBuf;

use crate::process::Folder;

/// Returns the status of an answer.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

/// Returns the value of a required field.
pub(crate) fn field<'a>(answer: &'a str, name: &str) -> &'a str {
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("{name} is missing in\n{answer}"))
}

/// A file that is deleted at the end of the test.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    _folder: Folder,
}

impl File {
    pub(crate) fn with(name: &str, text: &str) -> Self {
        let folder = Folder::new(name);
        let file = Self { path: folder.path().join("limits.toml"), _folder: folder };
        file.save(text);
        file
    }

    /// Replaces the file atomically, as editors do.
    pub(crate) fn save(&self, text: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, &self.path).expect("renamed");
    }
}
