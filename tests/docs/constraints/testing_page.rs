//! `docs/testing.md` names only tests, files and scripts that exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ROOT;

fn root() -> PathBuf {
    PathBuf::from(ROOT)
}

/// Returns the sources of a test binary.
fn folder_of(binary: &str) -> PathBuf {
    let folders = ["tests", "tests/docs", "tests/http", "tests/laws", "tests/stores", "simulate/tests"];
    let mut folders = folders.iter().map(|folder| root().join(folder).join(binary));
    folders.find(|folder| folder.join("main.rs").exists()).unwrap_or_default()
}

/// Returns whether a test binary has this module, and compiles it.
fn is_module(binary: &str, module: &str) -> bool {
    let folder = folder_of(binary);
    let mut parent = folder.join("main.rs");
    let mut path = folder;
    module.split("::").all(|name| {
        let declares = fs::read_to_string(&parent).is_ok_and(|text| {
            text.lines().any(|line| line.trim() == format!("mod {name};") || line.starts_with(&format!("fn {name}()")))
        });
        path = path.join(name);
        let (file, module) = (path.with_extension("rs"), path.join("mod.rs"));
        parent = if file.exists() { file } else { module };
        declares
    })
}

/// Returns what the page names that does not exist.
fn missing(page: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut named = 0;
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').collect();
        // The last column of a table with three columns names tests.
        if let ["", _, _, tests, ""] = cells[..] {
            let mut binary = "";
            for text in tests.split('`').skip(1).step_by(2) {
                let test = text.split_once(": ").map_or(text, |(name, test)| {
                    binary = name;
                    test
                });
                let exists = if test.contains('/') { root().join(test).exists() } else { is_module(binary, test) };
                named += 1;
                if !exists {
                    missing.push(format!("{binary}: {test}"));
                }
            }
        }
        // A command names the program or the tests that it runs.
        let words: Vec<_> = line.split_whitespace().map(|word| word.trim_matches(['`', '.', ',', '(', ')'])).collect();
        missing.extend(words.iter().filter(|word| word.starts_with("scripts/") && !root().join(word).exists()).map(
            |script| {
                named += 1;
                (*script).to_owned()
            },
        ));
        if let Some(at) = words.iter().position(|word| *word == "--test")
            && let Some(binary) = words.get(at + 1)
        {
            let module = words.get(at + 2).filter(|word| !word.starts_with(['-', '#', '`']));
            if folder_of(binary).as_os_str().is_empty() || module.is_some_and(|module| !is_module(binary, module)) {
                missing.push(format!("{binary} {module:?}"));
            }
        }
    }
    assert!(named > 40, "the page names {named} tests: the test does not read it");
    missing
}

#[test]
fn named_tests_and_scripts_exist() {
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("the page");
    assert_eq!(missing(&page), [""; 0]);

    let wrong = page
        .replacen("`algorithms: purity`", "`algorithms: impurity`", 1)
        .replacen("scripts/fuzz", "scripts/fizz", 1)
        .replacen("--test memory linearizability", "--test memory linear", 1);
    let mut found = missing(&wrong);
    found.sort();
    assert_eq!(found, ["algorithms: impurity", "memory Some(\"linear\")", "scripts/fizz"]);
}

/// Returns the words of a text without markup and punctuation.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|char: char| char.is_whitespace() || "*`.,:;()|".contains(char));
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns the cells of each row of a table, without its head.
fn rows<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let (_, table) = text.split_once(head).unwrap_or_else(|| panic!("there is no table {head}"));
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Each word of README's comparison and guarantees stands in the first column of a row, in this order. Each row names
/// tests, which [`missing`] looks for.
#[test]
fn each_promise_of_readme_has_a_row() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("the page");
    let (_, guarantees) = readme.split_once("\n## Guarantees\n").expect("the section");
    let (guarantees, _) = guarantees.split_once("\n## ").expect("the next section");
    let guarantees = guarantees.split_once("\n- ").expect("a list").1.replace("\n- ", " ");
    let comparison = rows(&readme, "| | tower-ratelimit |").iter().map(|row| row[..2].join(" ")).collect::<Vec<_>>();
    for (head, promises) in [("\n| Comparison |", comparison.join(" ")), ("\n| Guarantee |", guarantees)] {
        let (promises, rows) = (words(&promises), rows(&page, head));
        let listed = words(&rows.iter().map(|row| row[0]).collect::<Vec<_>>().join(" "));
        assert!(promises.len() > 30 && rows.len() > 6, "{promises:?}");
        let different = promises.iter().zip(&listed).position(|(promise, listed)| promise != listed);
        let from = different.unwrap_or(promises.len().min(listed.len())).saturating_sub(4);
        assert_eq!(
            promises[from..],
            listed[from..],
            "a row of docs/testing.md for each promise of README.md, in its words"
        );
        let untested: Vec<_> = rows.iter().filter(|row| !row[2].contains('`')).collect();
        assert!(untested.is_empty(), "no tests: {untested:?}");
    }
}

/// The rows of docs/performance.md that comments in the sources name.
fn named_rows(source: &str) -> Vec<String> {
    let comments: Vec<_> = source.lines().filter_map(|line| line.trim().strip_prefix("//")).collect();
    let text = comments.iter().map(|line| line.trim_start_matches(['/', '!']).trim()).collect::<Vec<_>>().join(" ");
    let mut rows = Vec::new();
    for (at, _) in text.match_indices("row") {
        let Some(mut rest) = text[at..].trim_start_matches("row").trim_start_matches('s').strip_prefix(" \"") else {
            continue;
        };
        // `rows "a" and "b"`
        while let Some((row, after)) = rest.split_once('"') {
            rows.push(row.to_owned());
            let Some(more) = after.strip_prefix(" and \"") else { break };
            rest = more;
        }
    }
    rows
}

#[test]
fn rows_that_comments_name_exist() {
    fn collect(folder: &Path, rows: &mut BTreeMap<String, PathBuf>) {
        for path in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                collect(&path, rows);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).expect("a source file");
                rows.extend(named_rows(&source).into_iter().map(|row| (row, path.clone())));
            }
        }
    }
    let mut rows = BTreeMap::new();
    collect(&root().join("src"), &mut rows);
    let page = fs::read_to_string(root().join("docs/performance.md")).expect("the page");
    let listed: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let unknown: Vec<_> =
        rows.iter().filter(|(row, _)| !listed.iter().any(|listed| listed.starts_with(row.as_str()))).collect();
    assert!(unknown.is_empty() && rows.len() > 5, "docs/performance.md has no such rows: {unknown:?}");
    assert_eq!(named_rows("// In line: rows \"a\" and\n// \"b\" of the page.\n// A row of `x`."), ["a", "b"]);
}

#[test]
fn listed_mutants_are_of_functions_that_exist() {
    let list = fs::read_to_string(root().join("mutants/equivalent.txt")).expect("the list");
    let lines: Vec<_> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let is_outdated = |line: &str| {
        let parts: Vec<_> = line.splitn(3, ' ').collect();
        let name = parts[2].split('`').nth(1).expect("a function");
        // A name of a nested Lua function is that of its table and its own.
        let name = name.rsplit('.').next().unwrap_or_default();
        let text = fs::read_to_string(root().join(parts[1])).unwrap_or_default();
        let is_function = if Path::new(parts[1]).extension() == Some("lua".as_ref()) {
            name.to_owned()
        } else {
            format!("fn {name}")
        };
        text.is_empty() || !text.contains(&is_function)
    };
    assert!(lines.len() > 100, "{} lines: the test does not read them", lines.len());
    let outdated: Vec<_> = lines.into_iter().filter(|line| is_outdated(line)).collect();
    assert_eq!(outdated, [""; 0], "correct the list or delete the line");
}

/// Returns for each file of loom models, by its module without `loom_tests`, the number of its models.
fn loom_models() -> BTreeMap<String, usize> {
    fn collect(folder: &Path, models: &mut BTreeMap<String, usize>) {
        for path in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                collect(&path, models);
                continue;
            }
            let module = path.strip_prefix(root().join("src")).expect("below `src`").with_extension("");
            let parts: Vec<_> = module.iter().filter_map(|part| part.to_str()).collect();
            if parts.iter().any(|part| part.ends_with("loom_tests")) {
                let count = fs::read_to_string(&path).expect("a source file").matches("#[test]").count();
                let named: Vec<_> = parts.into_iter().filter(|part| *part != "loom_tests").collect();
                models.extend((count > 0).then(|| (named.join("::"), count)));
            }
        }
    }
    let mut models = BTreeMap::new();
    collect(&root().join("src"), &mut models);
    models
}

#[test]
fn table_lists_all_loom_models() {
    let page = fs::read_to_string(root().join("docs/testing.md")).expect("the page");
    let (_, table) = page.split_once("<!-- loom: ").expect("the table");
    let (table, _) = table.split_once("<!-- end of loom -->").expect("the end of the table");
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        Some(((*cells.get(1)?).to_owned(), cells.get(2)?.parse().ok()?))
    };
    let listed: BTreeMap<String, usize> = table.lines().filter_map(row).collect();
    assert_eq!(listed, loom_models(), "run scripts/loom-table");
}
