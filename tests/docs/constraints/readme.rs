//! README.md and CONTRIBUTING.md name what exists: examples, Cargo features, pages and scripts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ROOT;

/// The index, the pages for contributors, which are not in the package, and the pictures.
const NOT_IN_THE_GUIDE: [&str; 4] = ["README", "design", "testing", "pictures"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect(path)
}

/// The names in a directory, without extension.
fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(directory)).expect(directory);
    let path_of = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").path();
    let is_listed =
        |path: &std::path::PathBuf| path.is_dir() || path.extension().is_none_or(|end| end == "rs" || end == "md");
    let names = entries.map(path_of).filter(is_listed).map(|path| path.file_stem().expect("a name").to_owned());
    let mut names: Vec<_> = names.map(|name| name.into_string().expect("UTF-8")).collect();
    names.sort();
    assert!(names.len() > 5, "{directory} is read");
    names
}

/// The features of Cargo.toml, without `default`.
fn features() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let table = manifest.split("\n[features]\n").nth(1).and_then(|rest| rest.split("\n[").next()).expect("features");
    let is_line = |line: &&str| !line.starts_with('#') && line.contains(" = ");
    let names = table.lines().filter(is_line).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "default").map(str::to_owned).collect()
}

/// The section of a Markdown text under a heading of the second level.
fn section(text: &str, heading: &str) -> String {
    let section = text.split("\n## ").find(|section| section.starts_with(heading));
    section.unwrap_or_else(|| panic!("there is no section {heading}")).to_owned()
}

fn missing(names: Vec<String>, text: &str) -> Vec<String> {
    names.into_iter().filter(|name| !text.contains(&format!("`{name}`"))).collect()
}

#[test]
fn readme_names_each_example() {
    assert_eq!(missing(names_in("examples"), &section(&read("README.md"), "Examples")), [""; 0]);
}

#[test]
fn readme_names_each_feature() {
    assert_eq!(missing(features(), &section(&read("README.md"), "Cargo features")), [""; 0]);
}

/// Returns the number of crates in a build for Linux.
fn crates_with(edges: &str, features: &[&str]) -> usize {
    let options = format!("tree --locked --target x86_64-unknown-linux-gnu -e {edges} --prefix none --no-dedupe");
    let mut command = Command::new(env!("CARGO"));
    // Other platforms may not have each crate for Linux.
    let online = cfg!(not(target_os = "linux"));
    command.args(options.split(' ')).args(features).args((!online).then_some("--offline"));
    let output = command.current_dir(ROOT).output().expect("cargo");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().collect::<BTreeSet<_>>().len()
}

#[test]
fn readme_counts_the_crates_with_and_without_redis() {
    let features = section(&read("README.md"), "Cargo features");
    let command = "cargo tree --locked --target x86_64-unknown-linux-gnu -e no-dev --prefix none --no-dedupe";
    assert!(features.contains(command), "the command");
    for (row, options) in [
        ("none (`--no-default-features`)", &["--no-default-features"][..]),
        ("default", &[]),
        ("`redis` beside the default ones", &["--features", "redis"]),
    ] {
        let count = crates_with("no-dev", options);
        assert!(features.contains(&format!("| {row} | {count} |")), "README.md: {row} has {count} crates");
    }
}

/// A stranger's first command compiles the dependencies of the library and of all its tests and examples.
#[test]
fn readme_counts_the_crates_of_the_first_example() {
    let count = crates_with("normal,build,dev", &[]);
    assert!(count <= 75, "{count} crates: an example or a test that needs more is a package of its own");
    assert!(
        read("README.md").contains(&format!("`cargo run --example axum` compiles {count} crates (")),
        "{count} crates"
    );
}

/// The front page of the documentation lists the guide as one module.
#[test]
fn pages_of_the_guide_are_modules_below_one_module() {
    let text = read("src/lib.rs");
    let (outside, guide) = text.split_once("\npub mod guide {\n").expect("the guide");
    assert!(!outside.contains("include_str!(\"../docs"), "a page is outside of the guide");
    let pages = names_in("docs").into_iter().filter(|page| !NOT_IN_THE_GUIDE.contains(&&**page));
    let names =
        pages.map(|page| page.replace('-', "_")).filter(|page| !guide.contains(&format!("pub mod {page} {{}}")));
    assert_eq!(names.collect::<Vec<_>>(), [""; 0]);
    // The examples of the pages are documentation tests.
    let tested = read("tests/docs/guide.rs");
    let untested = names_in("docs").into_iter().filter(|page| !["README", "pictures"].contains(&&**page));
    let untested: Vec<_> = untested.filter(|page| !tested.contains(&format!("/docs/{page}.md\")]\n"))).collect();
    assert_eq!(untested, [""; 0]);
    let links = outside.split_once("# Components").expect("the section after the first example").0;
    assert!(links.contains("[`guide`]"), "the first screen links to the guide");
}

/// The guide's first page and README.md link to the files of all pages. Links of README.md are relative, so that they lead
/// to the repository from a registry's page, too.
#[test]
fn each_page_is_linked_from_the_guide_and_the_readme() {
    let (index, readme) = (read("docs/README.md"), read("README.md"));
    for page in names_in("docs").into_iter().filter(|page| !NOT_IN_THE_GUIDE.contains(&&**page)) {
        assert!(index.contains(&format!("]: {page}.md\n")), "docs/README.md does not link to {page}");
        assert!(readme.contains(&format!("](docs/{page}.md)")), "README.md does not link to {page}");
    }
    let linked = readme.split("](docs/").skip(1).filter_map(|rest| rest.split(')').next());
    let missing: Vec<_> = linked.filter(|page| !Path::new(ROOT).join("docs").join(page).exists()).collect();
    assert_eq!(missing, [""; 0]);
}

/// Other scripts call the excluded ones.
#[test]
fn contributing_names_each_script() {
    let text = read("CONTRIBUTING.md");
    let names =
        names_in("scripts").into_iter().filter(|name| !["foreign", "redis-servers", "redis-cell"].contains(&&**name));
    let unnamed: Vec<_> = names.filter(|name| !text.contains(&format!("scripts/{name}"))).collect();
    assert_eq!(unnamed, [""; 0]);
}
