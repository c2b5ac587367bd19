//! The file of the tests of examples with a file of limits.

use std::fs;
use std::path::PathBuf;

use crate::process::Folder;

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
