//! The typical cases of `docs/choosing.md`. Documentation tests compile their Rust code.

use std::process::Command;

use serde::Deserialize;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{Simulation, Traffic, code};

use crate::support::millis;

const GUIDE: &str = include_str!("../../../docs/choosing.md");
const LIMITS: &str = include_str!("../../../docs/limits.md");
const EVERYDAY: &str = include_str!("../../../docs/everyday.md");

#[derive(Deserialize)]
struct Config {
    limits: Vec<Policy>,
}

/// The parts of the guide between headings of the third level, under the heading of the cases.
fn cases() -> Vec<&'static str> {
    let cases = GUIDE.split("\n## ").find(|part| part.starts_with("Typical cases\n")).expect("the cases");
    cases.split("\n### ").skip(1).collect()
}

/// The contents of the code blocks in a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    text.split(fence.as_str()).skip(1).map(|rest| rest.split("\n```").next().expect("the end of a block")).collect()
}

fn parse(block: &str) -> Vec<Policy> {
    toml::from_str::<Config>(block).unwrap_or_else(|error| panic!("{block}\n{error}")).limits
}

/// Returns the limits of the case with this picture.
pub(crate) fn limits_of_case(picture: &str) -> Vec<Policy> {
    let cases = cases();
    let case = cases.iter().find(|case| case.contains(&format!("][picture-{picture}]"))).expect("a case");
    let [block] = blocks(case, "toml")[..] else { panic!("{case}") };
    parse(block)
}

#[test]
fn every_configuration_is_valid() {
    let (guide, limits) = (blocks(GUIDE, "toml"), blocks(LIMITS, "toml"));
    // The requests in flight, and the priority classes.
    assert_eq!((guide.len(), limits.len()), (cases().len(), 2));
    assert!(guide.into_iter().chain(limits).all(|block| !parse(block).is_empty()));
}

#[test]
fn each_case_has_a_picture_and_code_and_configuration() {
    let cases = cases();
    assert_eq!(cases.len(), 6);
    for case in cases {
        assert_eq!((blocks(case, "rust").len(), blocks(case, "toml").len()), (1, 1), "{case}");
        let picture = case.split("][picture-").nth(1).and_then(|rest| rest.split(']').next()).expect("a picture");
        let limits = limits_of_case(picture);
        let mut traffic = Traffic::for_policies(&limits);
        let keys = vec!["a"; traffic.columns().len()];
        traffic.push(millis(0), &keys, 1);
        let report = Simulation::together(&limits, &traffic).expect("a limiter").run();
        assert_eq!(report.admitted, 1, "{case}");
    }
}

/// The Rust code of a case contains the expression that the playground writes for the TOML.
#[test]
fn code_and_configuration_of_a_case_have_the_same_settings() {
    for case in cases() {
        let picture = case.split("][picture-").nth(1).and_then(|rest| rest.split(']').next()).expect("a picture");
        // The code writes some numbers in other forms.
        let rust = blocks(case, "rust").concat().replace("15 * 60", "900").replace('_', "");
        for limit in limits_of_case(picture) {
            let expression = code::rust(&limit);
            let algorithm = expression.strip_prefix("Memory::new(").and_then(|rest| rest.strip_suffix(')'));
            let algorithm = algorithm.expect("an expression").replace('_', "");
            assert!(rust.contains(&algorithm), "{algorithm}: {rust}");
        }
    }
}

/// The program prints the text that the page shows. The other selections of the same log find other limits.
#[test]
fn command_on_the_sample_prints_what_the_page_shows() {
    let section = GUIDE.split("\n## ").find(|part| part.starts_with("Simulation\n")).expect("the section");
    let run = |command: &str| {
        let command = command.strip_prefix("simulate ").expect("a command");
        let mut program = Command::new(env!("CARGO_BIN_EXE_simulate"));
        let output = program.args(command.split(' ')).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).output();
        let output = output.expect("the program");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let command = *blocks(section, "sh").last().expect("a command");
    let [shown] = blocks(section, "text")[..] else { panic!("one output is shown") };
    assert_eq!(run(command).trim_end(), shown);

    let sample = "simulate simulate/sample/limits.toml simulate/sample/access.log";
    // The scraper sends a third of the requests, so it determines the limit for a part of the requests.
    let by_requests = run(&format!("{sample} --suggest 1% --of requests"));
    let expected = "client: gcra, 30/min, burst 219, by address: denies 7 (0.96 %), 1 key";
    assert!(by_requests.contains(expected), "{by_requests}");
    let excluded = run(&format!("{sample} --exclude path=/health --exclude address=203.0.113.* --suggest 0%"));
    assert!(
        excluded.starts_with("428 requests in ") && excluded.contains("30/min, burst 15, by address"),
        "{excluded}"
    );
    let only = run(&format!("{sample} --only method=POST --only path=/cart*"));
    assert!(only.contains("  denied           0 (0.00 %)"), "{only}");
}

/// The pages show each picture, and define its link.
#[test]
fn guide_shows_every_picture_but_those_of_other_pages() {
    let pages = [GUIDE, LIMITS, EVERYDAY].concat();
    let pictures = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures")).expect("the pictures");
    let names = pictures.map(|file| file.expect("an entry").file_name().into_string().expect("text"));
    let mut count = 0;
    for name in names.filter_map(|file| file.strip_suffix(".svg").map(str::to_owned)) {
        if ["architecture", "leases"].contains(&name.as_str()) {
            continue;
        }
        assert!(pages.contains(&format!("][picture-{name}]\n")), "{name}");
        assert!(pages.contains(&format!("\n[picture-{name}]: pictures/{name}.svg\n")), "{name}");
        count += 1;
    }
    assert_eq!(pages.matches("\n![").count(), count);
}
