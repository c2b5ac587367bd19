//! The mutated copy of the crate: its files, and its builds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::mutate::Mutants;

/// Where the script of a limiter is assembled.
const SCRIPT: &str = "src/store/redis/script/source.rs";
/// Where tests assemble a script by themselves.
const TEST_SCRIPT: &str = "tests/stores/redis/lua.rs";
const RUNTIME: &str = include_str!("runtime.rs");
/// How often the mutants that do not compile are removed.
const MAX_BUILDS: usize = 12;

pub(crate) struct Copy {
    repository: PathBuf,
    pub(crate) folder: PathBuf,
    files: Vec<String>,
}

/// A test binary.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Copy {
    /// Copies the files that git tracks, and new ones.
    pub(crate) fn new(repository: &Path, folder: &Path) -> Self {
        let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
        let output = Command::new("git").args(list).current_dir(repository).output().expect("git runs");
        let is_part = |file: &str| {
            let outside = ["benches/", "fuzz/", "model/", "mutants/", "simulate/", ".ci/", ".github/"];
            !outside.iter().any(|outside| file.starts_with(outside)) && repository.join(file).is_file()
        };
        let text = String::from_utf8(output.stdout).expect("names in UTF-8");
        let files = text.lines().filter(|file| is_part(file)).map(str::to_owned).collect();
        let copy = Self { repository: repository.to_owned(), folder: folder.to_owned(), files };
        for file in &copy.files {
            if file != "Cargo.toml" && !file.starts_with("src/") {
                let mut contents = fs::read(repository.join(file)).expect("a file");
                if file == TEST_SCRIPT {
                    let text = String::from_utf8(contents).expect("text");
                    let complete = "parts.concat()";
                    assert!(
                        text.contains(complete),
                        "{TEST_SCRIPT} has changed: where a script is complete is not found"
                    );
                    let mutated = "tower_ratelimit::__mutants::lua(parts.concat())";
                    contents = text.replace(complete, mutated).into_bytes();
                }
                if file.ends_with("/Cargo.toml") {
                    contents = without_lints(&String::from_utf8(contents).expect("text")).into_bytes();
                }
                copy.write(file, &contents);
            }
        }
        if let Ok(lock) = fs::read(repository.join("Cargo.lock")) {
            copy.write("Cargo.lock", &lock);
        }
        copy.write("Cargo.toml", copy.manifest().as_bytes());
        copy.write("src/__mutants.rs", RUNTIME.as_bytes());
        // Selecting a mutant inside a `const fn` needs an intrinsic. Only this package is built with it.
        copy.write("rustc", b"#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec \"$@\"\n");
        Command::new("chmod").arg("+x").arg(copy.folder.join("rustc")).status().expect("chmod runs");
        copy
    }

    /// Returns the manifest with the packages of tests as the only members. Tests run many times, so the package is optimised.
    fn manifest(&self) -> String {
        let kept = without_lints(&self.read("Cargo.toml"));
        let members = "[workspace]\nmembers = [\"tests/http\", \"tests/laws\", \"tests/stores/redis\"]";
        format!("{kept}\n{members}\n[profile.dev.package.tower-ratelimit]\nopt-level = 1\n")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.repository.join(file)).unwrap_or_else(|error| panic!("reading {file} failed: {error}"))
    }

    /// Writes a file of the copy unless it is equal: equal files are not built again.
    fn write(&self, file: &str, contents: &[u8]) {
        let path = self.folder.join(file);
        if fs::read(&path).is_ok_and(|old| old == contents) {
            return;
        }
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, contents).unwrap_or_else(|error| panic!("writing {file} failed: {error}"));
    }

    /// Writes the files of `folders` with all mutants that compile, and builds the tests.
    pub(crate) fn build(&self, folders: &[String], tests: &[&str]) -> (Mutants, Vec<Binary>) {
        let mut arguments = vec!["test", "--no-run", "--workspace"];
        for &test in tests {
            arguments.extend(if test == "lib" { vec!["--lib"] } else { vec!["--test", test] });
        }
        let known = self.folder.join("invalid");
        let mut mutants = Mutants::default();
        mutants.invalid = fs::read_to_string(&known).unwrap_or_default().lines().map(str::to_owned).collect();
        for _ in 0..MAX_BUILDS {
            self.rewrite(folders, &mut mutants);
            let messages = self.cargo(&arguments);
            let invalid = self.invalid(&messages);
            println!("{} mutants, {} of them do not compile", mutants.list.len(), invalid.len());
            if invalid.is_empty() {
                let binaries = binaries(&messages);
                assert!(binaries.len() == tests.len(), "building the tests failed: see the messages above");
                return (mutants, binaries);
            }
            let numbers = invalid.into_iter().filter_map(|number| mutants.list.get(number as usize - 1));
            let keys: Vec<_> = numbers.map(|mutant| mutant.key.clone()).collect();
            mutants.invalid.extend(keys);
            let lines: Vec<_> = mutants.invalid.iter().map(String::as_str).collect();
            fs::write(&known, lines.join("\n")).expect("written");
        }
        panic!("building the mutated crate failed {MAX_BUILDS} times: see the messages above");
    }

    fn rewrite(&self, folders: &[String], mutants: &mut Mutants) {
        mutants.restart();
        let is_mutated = |file: &str| {
            let name = file.rsplit('/').next().unwrap_or(file);
            let is_test = name.ends_with("tests.rs") || file.contains("tests/");
            file.ends_with(".rs") && !is_test && folders.iter().any(|folder| file.starts_with(folder.as_str()))
        };
        for file in self.files.iter().filter(|file| file.starts_with("src/")) {
            let text = self.read(file);
            let text = match file.as_str() {
                "src/lib.rs" => with_runtime(&text),
                SCRIPT => with_lua_mutants(&text),
                file if is_mutated(file) => mutants.rewrite(file, &text),
                _ => text,
            };
            self.write(file, text.as_bytes());
        }
    }

    fn cargo(&self, arguments: &[&str]) -> Vec<Value> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(self.repository.join("target"), PathBuf::from);
        let output = Command::new("cargo")
            .args(arguments)
            .args(["--all-features", "--message-format", "json"])
            .env("RUSTC_WORKSPACE_WRAPPER", self.folder.join("rustc"))
            .env("CARGO_TARGET_DIR", target)
            .current_dir(&self.folder)
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the mutants that cause the errors of a build.
    fn invalid(&self, messages: &[Value]) -> BTreeSet<u32> {
        let mut invalid = BTreeSet::new();
        for message in messages.iter().map(|message| &message["message"]).filter(|message| message["level"] == "error")
        {
            let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
            let before = invalid.len();
            for span in spans.iter().filter(|span| span["is_primary"] == true) {
                let (Some(file), Some(line)) = (span["file_name"].as_str(), span["line_start"].as_u64()) else {
                    continue;
                };
                let column = span["column_start"].as_u64().unwrap_or(1);
                let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
                invalid.extend(nearest(&text, line as usize, column as usize));
            }
            if invalid.len() == before && !spans.is_empty() {
                eprintln!("{}", message["rendered"].as_str().unwrap_or_default());
            }
        }
        invalid
    }
}

/// Returns a manifest without its sections of lints and of the workspace.
fn without_lints(manifest: &str) -> String {
    let mut is_left_out = false;
    let kept = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_left_out = line.starts_with("[lints") || line.starts_with("[workspace");
        }
        !is_left_out
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Adds the module that selects mutants, and turns lints off.
fn with_runtime(root: &str) -> String {
    let head = "#![feature(core_intrinsics, const_eval_select)]\n#![allow(warnings, clippy::all, internal_features)]\n\
                #![allow(overflowing_literals, arithmetic_overflow, unconditional_panic, unconditional_recursion)]\n";
    let last = "#![cfg_attr(docsrs, feature(doc_cfg))]\n";
    let (doc, modules) = root.split_once(last).expect("the last attribute of the crate");
    format!("{doc}{head}#[doc(hidden)]\npub mod __mutants;\n{modules}")
}

fn with_lua_mutants(text: &str) -> String {
    let complete = "let text = fields::resolve(&text);";
    assert!(text.contains(complete), "{SCRIPT} has changed: the place where a script is complete is not found");
    text.replace(complete, &format!("let text = crate::__mutants::lua(text);\n{complete}"))
}

fn binaries(messages: &[Value]) -> Vec<Binary> {
    let tests = messages.iter().filter(|message| message["profile"]["test"] == true);
    let binaries = tests.filter_map(|message| {
        let name = message["target"]["name"].as_str()?.replace("tower_ratelimit", "lib");
        Some(Binary { name, path: PathBuf::from(message["executable"].as_str()?) })
    });
    binaries.collect()
}

/// Returns the mutant whose condition is the last before a position of a rewritten file.
fn nearest(text: &str, line: usize, column: usize) -> Option<u32> {
    let start = text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    let end = (start + column + "crate::__mutants::on(".len()).min(text.len());
    let end = (end..=text.len()).find(|&end| text.is_char_boundary(end))?;
    let call = "__mutants::on(";
    let number = text[..end].rfind(call).map(|at| at + call.len())?;
    let digits: String = text[number..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
