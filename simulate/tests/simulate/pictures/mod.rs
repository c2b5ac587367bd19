//! The pictures of the documentation. The test draws each one, and compares it with its file byte by byte.
//!
//! `WRITE_PICTURES=1 cargo test -p tower-ratelimit-simulate pictures` writes the files. A picture is an SVG in
//! `docs/pictures`, which Markdown pages show. The file beside it, `NAME.md`, defines the link `picture-NAME` with the
//! same SVG as a data URL, because rustdoc copies no files.

mod abuse;
mod architecture;
mod blocks;
mod cases;
mod in_flight;
mod leases;
mod patterns;
mod tenants;

use std::path::{Path, PathBuf};
use std::{env, fs};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The name and the content of each picture.
fn pictures() -> Vec<(&'static str, String)> {
    let mut pictures = patterns::pictures();
    pictures.extend(cases::pictures());
    pictures.push(("abuse", abuse::picture()));
    pictures.push(("in-flight", in_flight::picture()));
    pictures.push(("architecture", architecture::picture()));
    pictures.push(("leases", leases::picture()));
    pictures.push(("tenants", tenants::picture()));
    pictures
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures")
}

/// Returns the definition of the link to a picture.
fn definition(name: &str, svg: &str) -> String {
    format!("[picture-{name}]: data:image/svg+xml;base64,{}\n", STANDARD.encode(svg))
}

#[test]
fn pictures_are_those_of_the_simulator() {
    let mut expected = Vec::new();
    for (name, svg) in pictures() {
        expected.push((format!("{name}.md"), definition(name, &svg)));
        expected.push((format!("{name}.svg"), svg));
    }
    expected.sort();
    if env::var_os("WRITE_PICTURES").is_some() {
        for (file, content) in &expected {
            fs::write(folder().join(file), content).expect("a written file");
        }
    }
    let files = fs::read_dir(folder()).expect("the pictures").map(|file| file.expect("an entry").file_name());
    let mut files: Vec<_> = files.map(|name| name.into_string().expect("text")).collect();
    files.sort();
    assert_eq!(files, expected.iter().map(|(file, _)| file.clone()).collect::<Vec<_>>());
    for (file, content) in expected {
        let actual = fs::read_to_string(folder().join(&file)).expect("a picture");
        assert!(
            actual == content,
            "{file} differs: run `WRITE_PICTURES=1 cargo test -p tower-ratelimit-simulate pictures`"
        );
    }
}

/// A definition must be one line of Markdown, and pages should load fast.
#[test]
fn pictures_are_small_and_have_no_external_references() {
    for (name, svg) in pictures() {
        assert!(svg.len() < 20_000, "{name} has {} bytes", svg.len());
        assert_eq!(definition(name, &svg).lines().count(), 1);
        let links = svg.matches("://").count();
        assert_eq!(links, 1, "{name} names its namespace only");
    }
}
