//! Runs the example with valid and invalid files, and checks its responses.

#[path = "../../../tests/servers/limits_file.rs"]
mod limits_file;
#[path = "../../../tests/servers/process.rs"]
mod process;

use std::path::Path;
use std::process::{Command, Stdio};

use self::limits_file::File;
use self::process::{Process, field, listening, request, status};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-config"))
}

/// Starts the example, whose output includes its errors.
fn start(arguments: &[&Path]) -> Process {
    Process::start(example().args(arguments).stderr(Stdio::piped()))
}

/// Runs the example to its end. Returns its success and its output.
fn run(arguments: &[&Path]) -> (bool, Vec<String>) {
    let (status, printed) = start(arguments).output();
    (status.success(), printed)
}

fn limit(settings: &str) -> String {
    format!("[[limits]]\nname = \"x\"\n{settings}\nby = \"address\"\n")
}

#[test]
fn config_example_reloads_a_changed_file() {
    let file = File::with("config", &limit("algorithm = \"fixed-window\"\nquota = \"5/h\""));
    let server = start(&[&file.path]);
    let address = server.address();
    let get = || request(address, "GET", "/", "");
    let line = || server.line().expect("a line");
    let check = |answer: &str, limit: u32, remaining: u32| {
        assert_eq!(field(answer, "ratelimit-policy"), format!("\"x\";q={limit};w=3600"));
        assert!(field(answer, "ratelimit").starts_with(&format!("\"x\";r={remaining};")), "{answer}");
    };
    check(&get(), 5, 4);
    check(&get(), 5, 3);

    // A raised limit keeps the usage.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"100/h\""));
    assert_eq!(line(), format!("loaded the limits from {}", file.path.display()));
    check(&get(), 100, 97);

    // An invalid file is an error with its position and changes nothing.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"100/fortnight\""));
    let printed: Vec<_> = (0..5).map(|_| line()).collect();
    let start = format!("kept the previous limits: {}: TOML parse error at line 4, column 9", file.path.display());
    assert_eq!(printed[0], start);
    assert_eq!(printed[2], "4 | quota = \"100/fortnight\"");
    assert!(printed[4].starts_with("quota: \"100/fortnight\": a quota's period must end in "), "{printed:#?}");
    check(&get(), 100, 96);

    // The limit is lowered to the present usage.
    file.save(&limit("algorithm = \"fixed-window\"\nquota = \"4/h\""));
    // TOML's errors end in an empty line.
    let reloaded = [line(), line()].concat();
    assert_eq!(reloaded, format!("loaded the limits from {}", file.path.display()));
    let rejected = get();
    assert_eq!(status(&rejected), 429);
    check(&rejected, 4, 0);
}

#[test]
fn config_example_fails_for_an_invalid_file() {
    let file = File::with("wrong", &limit("algorithm = \"gcra\"\nquota = \"5/h\"\nburst = 0"));
    let (succeeded, printed) = run(&[&file.path]);
    assert!(!succeeded);
    assert!(printed.iter().any(|line| line.starts_with("burst: invalid burst: 0")), "{printed:#?}");

    let (succeeded, printed) = run(&[Path::new("/no/such/file.toml")]);
    assert!(!succeeded);
    assert!(printed[0].starts_with("/no/such/file.toml: "), "{printed:#?}");
}

/// The configuration file beside the example.
#[test]
fn config_example_serves_its_default_file() {
    let server = start(&[]);
    let answer = request(server.address(), "GET", "/", "");
    assert_eq!(status(&answer), 200);
    assert_eq!(field(&answer, "ratelimit-policy"), "\"address\";q=5;w=10, \"all\";q=1000;w=60");
}
