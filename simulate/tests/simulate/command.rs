//! The program `simulate`.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::process::Folder;

const POLICIES: &str = r#"
[[limits]]
name = "client"
algorithm = "sliding-log"
quota = "2 per 10s"
by = "address"

[[limits]]
name = "total"
algorithm = "leaky-queue"
quota = "1/s"
max_waiting = 1
by = "all"
"#;

/// Three clients. One line is malformed.
const LOG: &str = r#"192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.0" 200 1
192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.0" 200 1
192.0.2.1 - - [10/Oct/2000:13:55:38 +0000] "GET / HTTP/1.0" 200 1
-- log rotated --
192.0.2.2 - - [10/Oct/2000:13:55:38 +0000] "GET / HTTP/1.0" 200 1
192.0.2.3 - - [10/Oct/2000:13:55:38 +0000] "GET / HTTP/1.0" 200 1
192.0.2.1 - - [10/Oct/2000:13:55:46 +0000] "GET / HTTP/1.0" 200 1
"#;

/// The files of one test.
struct Files(Folder);

impl Files {
    fn new(test: &str) -> Self {
        let files = Self(Folder::new(&format!("simulate-{test}")));
        files.write("policies.toml", POLICIES);
        files.write("access.log", LOG);
        files
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).expect("a file");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_simulate"));
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null());
        command.output().expect("the command")
    }

    /// Runs the command, which must succeed, and returns its output.
    fn print(&self, arguments: &[&str]) -> (String, String) {
        let output = self.run(arguments);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (printed, errors) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{printed}\n{errors}");
        (printed, errors)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).expect("a written file")
    }
}

/// A log schedules no starts, so both limits together deny what the queue by itself delays.
#[test]
fn command_prints_a_report_for_each_limit_and_for_all() {
    let folder = Files::new("report");
    let (printed, errors) = folder.print(&["policies.toml", "access.log"]);
    assert_eq!(
        errors,
        "access.log: skipped 1 of 7 lines; the first is line 4: line not read: it is not in the common or combined log \
         format; correct or remove it\n"
    );
    let expected = "\
6 requests in 10 s

client: sliding-log, 2 per 10s, by address
  admitted         5 (83.33 %)
  denied           1 (16.66 %)
  keys denied      1 of 3 (33.33 %)
  longest denial   8 s
  most in 1 s      2, at most 2 by the algorithm
  most in 10 s     2, at most 2 by the algorithm
  most in 1 min    3, at most 12 by the algorithm
  worst keys       192.0.2.1: 1 of 4 denied, for up to 8 s

total: leaky-queue, 1/s, max_waiting 1, by all
  admitted         5 (83.33 %)
  delayed          2 of these, by at most 1 s
  denied           1 (16.66 %)
  keys denied      1 of 1 (100.00 %)
  longest denial   1 s
  most in 1 s      1, at most 1 by the algorithm
  most in 10 s     4, at most 10 by the algorithm
  most in 1 min    5, at most 60 by the algorithm
  worst keys       all: 1 of 6 denied, for up to 1 s

all limits together
  admitted         3 (50.00 %)
  denied           3 (50.00 %)
  keys denied      3 of 3 (100.00 %)
  longest denial   1 s
  most in 1 s      1, at most 1 by the algorithm
  most in 10 s     2, at most 2 by the algorithm
  most in 1 min    3, at most 12 by the algorithm
  worst keys       192.0.2.1: 1 of 4 denied, for up to 1 s
                   192.0.2.2: 1 of 1 denied, for up to 1 s
                   192.0.2.3: 1 of 1 denied, for up to 1 s
";
    assert_eq!(printed, expected);
}

/// A share by itself denies what borrows beside the common limit.
#[test]
fn command_reports_shares_marks_and_units() {
    let folder = Files::new("shares");
    let limits = r#"
[[limits]]
name = "share"
algorithm = "gcra"
quota = "2 per 10s"
by = "tenant"
unit = "tokens"
guarantee = 2

[[limits]]
name = "all"
algorithm = "gcra"
quota = "10 per 10s"
by = "all"
unit = "tokens"
warn_at = 0.5
"#;
    folder.write("shares.toml", limits);
    folder.write("log.csv", "time,tenant,tokens\n1,a,2\n1,a,3\n1,a,3\n1,b,2\n");
    let (printed, _) = folder.print(&["shares.toml", "log.csv"]);
    let expected = "
share: gcra, 2 per 10s, in tokens, guaranteed to 2, by tenant
  admitted         2 (50.00 %)
  denied           2 (50.00 %)
  exceeding        2 of these cost more than the limit ever allows
";
    assert!(printed.contains(expected), "{printed}");
    let expected = "
all limits together
  admitted         3 (75.00 %)
  borrowed         1 of these
  near the limit   the mark was crossed once
  denied           1 (25.00 %)
";
    assert!(printed.contains(expected), "{printed}");
    assert!(printed.contains("all: gcra, 10 per 10s, in tokens, warns at 0.5, by all\n"), "{printed}");
}

#[test]
fn command_suggests_limits() {
    let folder = Files::new("suggest");
    let (printed, _) = folder.print(&["policies.toml", "access.log", "--suggest", "0%", "--of", "requests"]);
    let suggestions = printed.split_once("suggestions for client: deny at most 0 requests\n").expect("suggestions").1;
    let expected = "  client: sliding-log, 3 per 10s, by address: denies 0 (0.00 %)

suggestions for total: deny at most 0 requests
  total: leaky-queue, 1 per 4s, max_waiting 4, by all: denies 0 (0.00 %)
  total: leaky-queue, 1 per 2s, max_waiting 3, by all: denies 0 (0.00 %)
  total: leaky-queue, 1/s, max_waiting 2, by all: denies 0 (0.00 %)
  total: leaky-queue, 2/s, max_waiting 2, by all: denies 0 (0.00 %)
  total: leaky-queue, 4/s, max_waiting 2, by all: denies 0 (0.00 %)
";
    assert_eq!(suggestions, expected);
}

#[test]
fn command_writes_decisions_and_a_chart() {
    let folder = Files::new("files");
    folder.print(&["policies.toml", "access.log", "--csv", "decisions.csv", "--svg", "chart.svg"]);
    let decisions = folder.read("decisions.csv");
    let lines: Vec<_> = decisions.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 6);
    assert_eq!(lines[0], "limit,time,address,cost,decision,wait,remaining");
    assert_eq!(lines[1], "\"client: sliding-log, 2 per 10s, by address\",971186136.000000,192.0.2.1,1,allowed,,1");
    assert_eq!(
        lines[3],
        "\"client: sliding-log, 2 per 10s, by address\",971186138.000000,192.0.2.1,1,denied,8.000000,0"
    );
    assert!(lines[8].ends_with(",192.0.2.1,1,delayed,1.000000,0"), "{}", lines[8]);
    let chart = folder.read("chart.svg");
    assert!(chart.starts_with("<svg ") && chart.ends_with("</svg>\n"));
    for title in ["client: sliding-log, 2 per 10s, by address", "all limits together"] {
        assert!(chart.contains(title), "{title}");
    }
}

/// By keys: each of two clients comes once in the log, and the third has the burst.
#[test]
fn command_suggests_limits_by_keys() {
    let folder = Files::new("keys");
    let (printed, _) = folder.print(&["policies.toml", "access.log", "--suggest", "0.1%"]);
    let suggestions = printed.split_once("suggestions for client: deny at most 1 key\n").expect("suggestions").1;
    let line = "  client: sliding-log, 1 per 10s, by address: denies 2 (33.33 %), 1 key: 192.0.2.1\n\n";
    let total = suggestions.strip_prefix(line).unwrap_or_else(|| panic!("{suggestions}"));
    // All requests have one key, which may not be denied.
    assert!(total.starts_with("suggestions for total: deny at most 0 keys\n"), "{total}");
    assert!(total.lines().skip(1).all(|line| line.ends_with("denies 0 (0.00 %)")), "{total}");
}

#[test]
fn command_leaves_out_filtered_lines() {
    let folder = Files::new("filter");
    let arguments =
        ["policies.toml", "access.log", "--exclude", "address=*.3", "--only", "path=/", "--only", "method=GET"];
    let (printed, errors) = folder.print(&arguments);
    assert!(printed.starts_with("5 requests in 10 s\n"), "{printed}");
    assert!(errors.ends_with("access.log: left out 1 of 7 lines by --only and --exclude\n"), "{errors}");
}

/// The chart shows the key with the most denied requests, not the key of the first line, or the key of `--key`.
#[test]
fn chart_shows_the_most_denied_key_or_the_named_one() {
    let folder = Files::new("chart");
    let quiet = "192.0.2.9 - - [10/Oct/2000:13:55:30 +0000] \"GET / HTTP/1.0\" 200 1\n";
    folder.write("access.log", &format!("{quiet}{LOG}"));
    folder.print(&["policies.toml", "access.log", "--svg", "chart.svg"]);
    let chart = folder.read("chart.svg");
    assert!(chart.contains("client: sliding-log, 2 per 10s, by address; remaining of 192.0.2.1"), "{chart}");
    assert!(chart.contains("by all; remaining of all"), "{chart}");
    folder.print(&["policies.toml", "access.log", "--svg", "chart.svg", "--key", "192.0.2.9"]);
    assert!(folder.read("chart.svg").contains("by address; remaining of 192.0.2.9"));
    let missing = folder.run(&["policies.toml", "access.log", "--svg", "chart.svg", "--key", "192.0.2.77"]);
    let errors = String::from_utf8(missing.stderr).expect("text");
    assert!(!missing.status.success() && errors.contains("no limit counts by the key \"192.0.2.77\""), "{errors}");
}

#[test]
fn command_prints_its_usage() {
    let folder = Files::new("usage");
    let (printed, errors) = folder.print(&["--help"]);
    assert!(printed.starts_with("usage: simulate LIMITS.toml LOG\n") && errors.is_empty(), "{printed}");
    for option in
        ["--format", "--time", "--cost", "--only", "--exclude", "--suggest", "--of", "--svg", "--key", "--csv"]
    {
        assert!(printed.contains(&format!("\n  {option} ")), "{option}");
    }
}

#[test]
fn command_explains_errors() {
    let folder = Files::new("errors");
    folder.write("user.toml", &POLICIES.replace("\"address\"", "\"tenant\""));
    folder.write("wrong.toml", &POLICIES.replace("2 per 10s", "2 per aeon"));
    for (arguments, expected) in [
        (&["policies.toml"][..], "usage: simulate LIMITS.toml LOG"),
        (&["policies.toml", "missing.log"], "missing.log: No such file"),
        (&["user.toml", "access.log"], "an access log has no column \"tenant\""),
        (&["wrong.toml", "access.log"], "wrong.toml: TOML parse error"),
        (&["policies.toml", "access.log", "--suggest", "2"], "\"2\" is no share: use a percentage such as 0.1%"),
        (&["policies.toml", "access.log", "--format", "xml"], "\"xml\" is no format"),
        (&["policies.toml", "access.log", "--fast"], "--fast"),
        (&["policies.toml", "access.log", "--only", "path"], "\"path\" is no rule: use FIELD=PATTERN"),
        (&["policies.toml", "access.log", "--exclude", "verb=GET"], "an access log has no column \"verb\""),
        (&["policies.toml", "access.log", "--of", "keys"], "--of needs --suggest"),
        (&["policies.toml", "access.log", "--key", "a"], "--key needs --svg"),
        (&["policies.toml", "access.log", "--suggest", "1%", "--of", "bytes"], "\"bytes\" cannot be counted"),
    ] {
        let output = folder.run(arguments);
        let errors = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(errors.starts_with("simulate: ") && errors.contains(expected), "{arguments:?}: {errors}");
    }
}
