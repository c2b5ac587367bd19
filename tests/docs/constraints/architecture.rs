//! The dependencies between modules, read from the sources, and the size of files.
//!
//! Imports point down only, so there are no cycles. The middleware names no store and no algorithm. Stores and limiters
//! name no algorithm. Modules below the middleware do not depend on requests. Comments and unit tests are ignored, but the
//! imports of files of tests point down too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::ROOT;

/// The levels, from the bottom up. A module may use modules of lower levels only.
///
/// Place a new module on the lowest possible level.
const LEVELS: &[&[&str]] = &[
    &["impls", "random", "scratch", "sync"],
    &["clock", "error", "runtime"],
    &["calendar", "decision", "encode", "quota", "read_ahead", "retry"],
    &["algorithm", "key", "observe"],
    &["limit", "response"],
    &["escalation"],
    &["limiter"],
    &["store"],
    &["config", "test_util"],
    &["middleware"],
    &["routes"],
    &["waiting"],
    &["pacing"],
];

/// The modules around a request, which depend on decisions but not on their computation.
const MIDDLEWARE: &[&str] = &["key", "read_ahead", "response", "middleware"];

/// The modules that compute decisions and do not depend on requests.
const DECIDING: &[&str] = &[
    "calendar",
    "clock",
    "decision",
    "encode",
    "quota",
    "algorithm",
    "observe",
    "limit",
    "escalation",
    "limiter",
    "store",
    "config",
];

/// What the stores use of the inside of the crate.
const INNER: &str = "store/inner.rs";

/// The maximum number of names in it.
const MAX_INNER_NAMES: usize = 41;

/// The maximum lines of code of a file, without comments and empty lines.
const MAX_LINES: usize = 420;

/// A source file.
struct Source {
    path: PathBuf,
    /// The top-level module: the first part of the path in `src`.
    module: String,
    code: String,
    /// Whether the file contains only tests.
    is_test: bool,
}

/// All source files but those that contain only tests.
fn sources() -> Vec<Source> {
    all_sources().into_iter().filter(|source| !source.is_test).collect()
}

fn all_sources() -> Vec<Source> {
    fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                collect(&entry, files);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                files.push(entry);
            }
        }
    }
    let root = Path::new(ROOT).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let sources = files.into_iter().filter_map(|file| {
        let path = file.strip_prefix(&root).expect("below `src`").to_owned();
        let is_test = path.iter().filter_map(|part| part.to_str()).any(|part| {
            let part = part.trim_end_matches(".rs");
            part == "tests" || part.ends_with("_tests")
        });
        let module = path.iter().next()?.to_str()?.trim_end_matches(".rs").to_owned();
        let code = code(&fs::read_to_string(&file).expect("a source file"));
        Some(Source { path, module, code, is_test })
    });
    let sources: Vec<_> = sources.collect();
    assert!(sources.len() > 40, "too few sources, so the test proves nothing");
    sources
}

/// The text up to its unit tests, without comments, empty lines and string contents.
fn code(text: &str) -> String {
    let code = unquoted(text);
    let lines: Vec<_> = code.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let starts_tests = |pair: &[&str]| {
        pair[0].starts_with("#[cfg(")
            && pair[0].contains("test")
            && pair[1].starts_with("mod ")
            && pair[1].ends_with("tests {")
    };
    let end = lines.windows(2).position(starts_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

fn unquoted(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("r\"") || rest.starts_with("r#\"") {
            let end = if rest.starts_with("r#") { "\"#" } else { "\"" };
            3 + rest[3..].find(end).expect("a raw string ends") + end.len()
        } else if char == '"' {
            let mut escaped = true;
            let ends = |char: char| {
                let is_end = char == '"' && !escaped;
                escaped = char == '\\' && !escaped;
                is_end
            };
            rest.find(ends).expect("a string ends") + 1
        } else if rest.starts_with("'\\") {
            3 + rest[3..].find('\'').expect("a character ends") + 1
        } else if char == '\'' && rest.chars().nth(2) == Some('\'') {
            2 + rest.chars().nth(1).map_or(0, char::len_utf8)
        } else {
            code.push(char);
            char.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

/// The names that follow `crate::`: the first name of a path, or of each path in braces.
fn named_in_crate(code: &str) -> BTreeSet<&str> {
    paths_in_crate(code).into_iter().map(|path| path[0]).collect()
}

/// The paths that follow `crate::`, with one path for each name in braces.
fn paths_in_crate(code: &str) -> BTreeSet<Vec<&str>> {
    let mut paths = BTreeSet::new();
    for (position, _) in code.match_indices("crate::") {
        read_path(&code[position + "crate::".len()..], &mut Vec::new(), &mut paths);
    }
    paths
}

/// Reads one path, with the paths in its braces. Returns the text behind it.
fn read_path<'a>(text: &'a str, start: &mut Vec<&'a str>, paths: &mut BTreeSet<Vec<&'a str>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|char: char| char.is_whitespace() || char == ',');
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
            rest = read_path(rest, start, paths);
            // A new name: `Thing as Other`.
            rest = rest.trim_start_matches(|char: char| !",}".contains(char));
        }
    }
    let name = if text.starts_with('*') { "*" } else { leading_word(text) };
    let rest = &text[name.len()..];
    start.push(name);
    let rest = match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with(|char: char| char.is_alphabetic() || "_{*".contains(char)) => {
            read_path(rest, start, paths)
        }
        _ => {
            paths.insert(start.clone());
            rest
        }
    };
    start.pop();
    rest
}

fn leading_word(text: &str) -> &str {
    let end = text.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(text.len());
    &text[..end]
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty())
}

/// The module of each public item of `lib.rs`: `crate::Gcra` is in `algorithm`.
fn reexports(sources: &[Source]) -> BTreeMap<String, String> {
    let lib = sources.iter().find(|source| source.module == "lib").expect("lib.rs");
    let mut names = BTreeMap::new();
    for item in lib.code.split(';').filter_map(|item| item.split("pub use crate::").nth(1)) {
        let (module, list) = item.split_once("::").expect("a path");
        for name in words(list) {
            names.insert(name.to_owned(), module.to_owned());
        }
    }
    assert!(names.len() > 20, "lib.rs re-exports more than {names:?}");
    names
}

/// The public items: for each the module in whose path the crate names it, and its name.
fn public_items(sources: &[Source]) -> BTreeSet<(String, String)> {
    let mut items: BTreeSet<_> = reexports(sources).into_iter().map(|(name, module)| (module, name)).collect();
    let lib = sources.iter().find(|source| source.module == "lib").expect("lib.rs");
    let modules = lib.code.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    for module in modules {
        let is_root =
            |path: &Path| path == Path::new(module).join("mod.rs") || path == Path::new(&format!("{module}.rs"));
        let source = sources.iter().find(|source| is_root(&source.path)).expect("the file of a public module");
        for item in source.code.lines().filter_map(|line| line.strip_prefix("pub ")) {
            let mut parts = words(item);
            let kind = parts.next().unwrap_or_default();
            if ["trait", "struct", "enum", "fn", "type", "const"].contains(&kind) {
                items.insert((module.to_owned(), parts.next().unwrap_or_default().to_owned()));
            }
        }
        for reexport in source.code.split("\npub use ").skip(1) {
            let reexport = reexport.split(';').next().expect("a part");
            let mut paths = BTreeSet::new();
            read_path(reexport, &mut Vec::new(), &mut paths);
            for path in paths {
                let name = (*path.last().expect("a name")).to_owned();
                // A re-export of another module's item makes it public there, too.
                let of = if path[0] == "crate" { path[1] } else { module };
                items.extend([(of.to_owned(), name.clone()), (module.to_owned(), name)]);
            }
        }
    }
    items
}

/// The modules that each module uses, with the files.
fn uses(sources: &[Source]) -> BTreeMap<(String, String), Vec<&Path>> {
    let reexports = reexports(sources);
    let mut uses: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.module != "lib") {
        for name in named_in_crate(&source.code) {
            let module = reexports.get(name).map_or(name, String::as_str);
            if module != source.module {
                uses.entry((source.module.clone(), module.to_owned())).or_default().push(source.path.as_path());
            }
        }
    }
    uses
}

fn level_of(module: &str) -> usize {
    LEVELS.iter().position(|level_of| level_of.contains(&module)).unwrap_or_else(|| {
        panic!("the module `{module}` has no level: add it to `LEVELS` in tests/docs/constraints/architecture.rs")
    })
}

/// The concrete types of a module that `lib.rs` re-exports, without traits and functions.
fn types_of(module: &str, sources: &[Source]) -> BTreeSet<String> {
    let reexports = reexports(sources).into_iter().filter(|(_, of)| of == module).map(|(name, _)| name);
    reexports.filter(|name| name.starts_with(char::is_uppercase)).collect()
}

#[test]
fn every_module_has_exactly_one_level() {
    let sources = sources();
    let present: BTreeSet<_> =
        sources.iter().map(|source| source.module.as_str()).filter(|name| *name != "lib").collect();
    let placed: Vec<_> = LEVELS.concat();
    assert_eq!(placed.len(), placed.iter().collect::<BTreeSet<_>>().len(), "a module has two levels");
    for module in &present {
        assert!(level_of(module) < LEVELS.len());
    }
    assert!(placed.iter().all(|module| present.contains(module)), "a module no longer exists: remove it from `LEVELS`");
    assert!(MIDDLEWARE.iter().chain(DECIDING).all(|module| present.contains(module)));
}

/// Each level uses lower ones only, so there are no cycles.
#[test]
fn imports_point_down() {
    let sources = all_sources();
    let uses = uses(&sources);
    assert!(uses.len() > 40, "too few imports were found: {:?}", uses.keys());
    let tests: BTreeSet<&Path> =
        sources.iter().filter(|source| source.is_test).map(|source| source.path.as_path()).collect();
    for ((user, used), files) in &uses {
        // Files of tests use the generator of random numbers, and the deliberate mistakes in `tests`.
        let is_of_tests =
            ["mistake", "test_util"].contains(&used.as_str()) && files.iter().all(|file| tests.contains(file));
        assert!(is_of_tests || level_of(used) < level_of(user), "`{user}` must not use `{used}`: {files:?}");
    }
}

/// A path to another module starts with `crate`, not with `super`.
#[test]
fn paths_to_other_modules_begin_with_crate() {
    for source in sources() {
        assert!(!source.code.contains("super::super"), "{:?} uses `super::super`", source.path);
        if source.path.components().count() == 1 {
            let up = source.code.lines().find(|line| line.starts_with("use super::"));
            assert_eq!(up, None, "{:?} is a top-level module", source.path);
        }
    }
}

#[test]
fn middleware_names_no_store_and_no_algorithm() {
    let sources = sources();
    let types = &types_of("store", &sources) | &types_of("algorithm", &sources);
    for name in ["Memory", "Gcra", "FixedWindow"] {
        assert!(types.contains(name), "{types:?} lacks {name}");
    }
    for source in sources.iter().filter(|source| MIDDLEWARE.contains(&source.module.as_str())) {
        for module in ["algorithm", "limit", "store", "config"] {
            assert!(!named_in_crate(&source.code).contains(module), "{:?} uses `{module}`", source.path);
        }
        let named = words(&source.code).find(|word| types.contains(*word));
        assert_eq!(named, None, "{:?} names one", source.path);
    }
}

#[test]
fn limiters_name_no_store_and_no_algorithm() {
    let sources = sources();
    let (stores, algorithms) = (types_of("store", &sources), types_of("algorithm", &sources));
    for source in &sources {
        let of_module = |module| source.module == module;
        if of_module("limiter") || of_module("limit") {
            let named = words(&source.code).find(|word| stores.contains(*word));
            assert_eq!(named, None, "{:?} names a store", source.path);
        }
        if of_module("limiter") || of_module("limit") || of_module("store") {
            let named = words(&source.code).find(|word| algorithms.contains(*word));
            assert_eq!(named, None, "{:?} names an algorithm", source.path);
        }
    }
}

#[test]
fn decision_modules_do_not_depend_on_requests() {
    for source in sources().iter().filter(|source| DECIDING.contains(&source.module.as_str())) {
        for name in ["http", "Request", "tower_service", "tower_layer"] {
            assert!(!words(&source.code).any(|word| word == name), "{:?} names `{name}`", source.path);
        }
        for module in ["key", "response", "middleware"] {
            assert!(!named_in_crate(&source.code).contains(module), "{:?} uses `{module}`", source.path);
        }
    }
}

/// A store imports public items, its own ones, and the names of one module. A store of a user's own needs no others.
///
/// Methods of public types that only the crate can call are no imports.
#[test]
fn stores_import_the_inside_from_one_module() {
    let sources = sources();
    let public = public_items(&sources);
    let is_public = |path: &[&str]| match *path {
        [name] => public.iter().any(|(_, public)| public == name),
        [module, name, ..] => public.contains(&(module.to_owned(), name.to_owned())),
        [] => false,
    };
    for (module, name) in
        [("decision", "Decision"), ("limit", "SubKeyOf"), ("encode", "KeyWriter"), ("algorithm", "State")]
    {
        assert!(is_public(&[module, name]), "{module}::{name} is public");
    }
    for (module, name) in [("decision", "Plan"), ("limit", "LimitFacts"), ("runtime", "sleep")] {
        assert!(!is_public(&[module, name]), "{module}::{name} is not public");
    }
    let inner = sources.iter().find(|source| source.path == Path::new(INNER)).expect("the module of the inside");
    let listed: BTreeSet<Vec<&str>> = paths_in_crate(&inner.code);
    let names: BTreeSet<&str> = listed.iter().map(|path| path[path.len() - 1]).collect();
    assert_eq!(listed.len(), names.len(), "two names of {INNER} are equal");
    assert!((20..=MAX_INNER_NAMES).contains(&names.len()), "{INNER} has {} names", names.len());
    for path in &listed {
        assert!(!is_public(path), "`{}` is public, so {INNER} need not list it", path.join("::"));
    }
    let mut used = BTreeSet::new();
    let of_stores = sources.iter().filter(|source| source.module == "store" && source.path != Path::new(INNER));
    for source in of_stores {
        let own: Vec<&str> = source.path.iter().filter_map(|part| part.to_str()).take(2).collect();
        for path in paths_in_crate(&source.code) {
            match path[..] {
                ["store", "inner", name, ..] => {
                    used.insert(name.to_owned());
                }
                ["store", store, ..] if own[1].trim_end_matches(".rs") == store => {}
                _ => assert!(is_public(&path), "{:?} imports `{}`: add it to {INNER}", source.path, path.join("::")),
            }
        }
    }
    let unused: Vec<_> = names.iter().filter(|name| !used.contains(**name)).collect();
    assert!(unused.is_empty(), "no store uses these names of {INNER}: {unused:?}");
}

/// An algorithm is a function of a state, a time and a cost. (`algorithm/state` contains the storage of states.)
#[test]
fn algorithms_read_no_clock_and_take_no_lock() {
    let sources = sources();
    for source in
        sources.iter().filter(|source| source.module == "algorithm" && !source.path.starts_with("algorithm/state"))
    {
        for name in ["Clock", "Instant", "SystemTime", "SystemClock", "Mutex", "RwLock", "async", "await", "thread"] {
            assert!(!words(&source.code).any(|word| word == name), "{:?} names `{name}`", source.path);
        }
    }
}

/// The files and folders of decisions in memory.
const IN_MEMORY: [&str; 7] =
    ["algorithm", "decision", "escalation.rs", "limit", "quota.rs", "store/custom", "store/memory"];

/// Expired entries are reused or removed by decisions themselves.
#[test]
fn decisions_in_memory_start_no_thread_and_no_task() {
    let sources = sources();
    let is_missing = |folder: &&&str| !sources.iter().any(|source| source.path.starts_with(folder));
    assert_eq!(IN_MEMORY.iter().find(is_missing), None, "a folder without sources is not checked");
    for source in sources.iter().filter(|source| IN_MEMORY.iter().any(|folder| source.path.starts_with(folder))) {
        for name in ["spawn", "thread", "runtime", "tokio", "sleep"] {
            assert!(!words(&source.code).any(|word| word == name), "{:?} names `{name}`", source.path);
        }
    }
}

/// The files of a limiter in memory and of responses with locks, and how many each declares.
///
/// A decision locks the shards of its keys. It takes no other lock of several keys, unless it has an id, or crosses a mark.
const LOCKS: &[(&str, usize)] = &[
    // Of the keys of a shard, or of some keys that cross their mark.
    ("store/memory/table/shard.rs", 1),
    ("limit/warn_at.rs", 1),
    // Of names, while a limiter is built.
    ("decision/status.rs", 1),
    ("store/memory/hasher.rs", 1),
    // Of ids.
    ("store/memory/reservations.rs", 1),
    // While limits are replaced.
    ("store/memory/replace.rs", 1),
];

#[test]
fn locks_of_a_limiter_in_memory_and_of_responses_are_listed() {
    let declared = |source: &Source| {
        let lines = source.code.lines().filter(|line| !line.contains("&Mutex<"));
        lines.flat_map(|line| ["Mutex<", "RwLock<", "SpinLock<"].map(|lock| line.matches(lock).count())).sum::<usize>()
    };
    let sources = sources();
    let folders = [&IN_MEMORY[..], &["response"]].concat();
    let in_memory = sources.iter().filter(|source| folders.iter().any(|folder| source.path.starts_with(folder)));
    let found: BTreeMap<_, _> = in_memory.map(|source| (source.path.as_path(), declared(source))).collect();
    let found: Vec<_> = found.into_iter().filter(|(_, count)| *count > 0).collect();
    let mut listed: Vec<_> = LOCKS.iter().map(|(path, count)| (Path::new(path), *count)).collect();
    listed.sort_unstable();
    assert_eq!(found, listed, "place a new lock in `LOCKS`");
}

#[test]
fn files_have_at_most_the_maximum_lines() {
    for source in sources() {
        let lines = source.code.lines().count();
        assert!(lines <= MAX_LINES, "{:?} has {lines} lines of code: split it", source.path);
    }
}

/// The parser that the tests above use.
#[test]
fn imports_are_parsed_from_code_and_not_from_comments_or_strings() {
    let text = r##"//! crate::comment
use crate::one::Thing; // crate::aside
use crate::{
    three::{Deep, four},
    Root, five,
};
fn f<'a>(_: &'a str) -> crate::six::T<$crate::seven::U> {
    let quoted = ["crate::string \" crate::still", r#"crate::raw "#, "\\"];
    let chars = ['"', '\'', '\\', 'ß'];
}
/// [`x`](crate::eight)
use crate::last;
#[cfg(test)]
mod tests {
    use crate::nine;
}
"##;
    let code = code(text);
    let paths: Vec<_> = paths_in_crate(&code).into_iter().map(|path| path.join("::")).collect();
    let expected = ["Root", "five", "last", "one::Thing", "seven::U", "six::T", "three::Deep", "three::four"];
    assert_eq!(paths, expected);
    let named: Vec<_> = named_in_crate(&code).into_iter().collect();
    assert_eq!(named, ["Root", "five", "last", "one", "seven", "six", "three"]);
    assert_eq!(code.lines().count(), 10);
}
