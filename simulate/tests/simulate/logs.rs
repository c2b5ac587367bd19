//! Parsers: access logs, JSON lines, CSV.

use proptest::prelude::*;
use tower_ratelimit_simulate::{Filter, LogFormat, LogOptions, LogParser, ReadLine, Traffic};

/// The arrivals of a log: time in microseconds, values, cost.
fn read(columns: &[&str], log: &str) -> Vec<(u64, String, u64)> {
    let mut traffic = Traffic::new(columns.iter().copied());
    let format = LogFormat::detect(log.lines().next().expect("a line"));
    let mut parser = LogParser::new(format, &traffic).expect("a parser");
    for line in log.lines() {
        parser.read(line, &mut traffic).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let arrivals = traffic.arrivals();
    let values = |arrival| traffic.values(arrival).collect::<Vec<_>>().join("|");
    arrivals.iter().map(|arrival| (arrival.time.as_micros(), values(arrival), arrival.cost)).collect()
}

/// The error of a line that follows `before`.
fn error(columns: &[&str], format: LogFormat, before: &str, line: &str) -> String {
    let mut traffic = Traffic::new(columns.iter().copied());
    let mut parser = LogParser::new(format, &traffic).expect("a parser");
    for line in before.lines() {
        parser.read(line, &mut traffic).expect("a valid line");
    }
    let error = parser.read(line, &mut traffic).expect_err("an invalid line").to_string();
    assert!(traffic.is_empty(), "an invalid line adds nothing");
    error
}

const COMMON: &str = r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif?size=1 HTTP/1.0" 200 2326"#;
const COMBINED: &str =
    r#"2001:db8::1 - - [10/Oct/2000:20:55:37 +0000] "POST / HTTP/1.1" 200 5 "http://a.b/[x]" "x/5 [en] \"x\"""#;

#[test]
fn access_log_has_addresses_users_and_paths() {
    assert_eq!(
        read(&["address", "path"], &format!("{COMMON}\n\n{COMBINED}\n")),
        [
            (971_211_336_000_000, "192.0.2.1|/apache_pb.gif".to_owned(), 1),
            (971_211_337_000_000, "2001:db8::|/".to_owned(), 1),
        ]
    );
    assert_eq!(read(&["user"], COMMON), [(971_211_336_000_000, "alice".to_owned(), 1)]);
    assert_eq!(read(&[], COMBINED), [(971_211_337_000_000, String::new(), 1)]);
}

/// Neighbouring formats are read rightly or refused: the virtual host in front, host names, and numbers in other units than
/// seconds; and an address counts as the layer counts it.
#[test]
fn lines_of_neighbouring_formats_are_read_rightly_or_refused() {
    for host in ["www.example.com:443", "localhost:80", "-"] {
        let log = format!("{host} {COMMON}\n{host} {COMBINED}");
        let expected = [
            (971_211_336_000_000, "192.0.2.1|/apache_pb.gif".to_owned(), 1),
            (971_211_337_000_000, "2001:db8::|/".to_owned(), 1),
        ];
        assert_eq!(read(&["address", "path"], &log), expected, "{host}");
        assert_eq!(read(&["user"], &format!("{host} {COMMON}")), [(971_211_336_000_000, "alice".to_owned(), 1)]);
    }
    let name = COMMON.replace("192.0.2.1", "client.example.com");
    assert!(error(&["address"], LogFormat::AccessLog, "", &name).contains("\"client.example.com\" is no address"));
    assert_eq!(read(&["user"], &name), [(971_211_336_000_000, "alice".to_owned(), 1)]);
    let log = r#"{"time": 1700000000123, "client": "2001:db8:0:1:2::3"}
{"time": 1700000000.5, "client": "2001:db8:0:1::4"}
{"time": 1700000000600000, "client": "::ffff:192.0.2.1"}
{"time": 1700000000700000000, "client": "192.0.2.1"}
{"time": "2023-11-14T22:13:20.8Z", "client": "fe80"}"#;
    let read = read(&["client"], log).into_iter().map(|(time, client, _)| (time - 1_700_000_000_000_000, client));
    let network = || "2001:db8:0:1::".to_owned();
    let expected = [(123_000, network()), (500_000, network()), (600_000, "192.0.2.1".to_owned())];
    let rest = [(700_000, "192.0.2.1".to_owned()), (800_000, "fe80".to_owned())];
    assert_eq!(read.collect::<Vec<_>>(), expected.into_iter().chain(rest).collect::<Vec<_>>());
    for time in ["200000000", "5000000000", "17000000000", "170000000012", "17000000001234567890"] {
        let line = format!(r#"{{"time": {time}, "client": "a"}}"#);
        assert!(error(&["client"], LogFormat::JsonLines, "", &line).contains("is no time"), "{time}");
    }
}

#[test]
fn access_log_lines_without_a_value_are_errors() {
    assert_eq!(
        error(&["user"], LogFormat::AccessLog, "", COMBINED),
        "line not read: it has no field \"user\"; correct or remove it"
    );
    for line in ["", "x", "192.0.2.1 - - [yesterday] \"GET / HTTP/1.0\" 200 1"] {
        if !line.is_empty() {
            error(&["address"], LogFormat::AccessLog, "", line);
        }
    }
}

#[test]
fn access_log_has_no_other_columns() {
    let traffic = Traffic::new(["tenant"]);
    let error = LogParser::new(LogFormat::AccessLog, &traffic).expect_err("an unknown column").to_string();
    assert_eq!(
        error,
        "an access log has no column \"tenant\"; its columns are \"address\", \"user\", \"method\", \"path\", and a limit \
         can count by \"all\""
    );
}

#[test]
fn json_lines_have_texts_and_numbers() {
    let log = r#"{"time": 1700000000.5, "user": "al\"ice", "nested": {"user": [1]}, "cost": 3}
{"user": 7, "time": "2023-11-14T22:13:21Z", "cost": null}
{"user": true, "time": 1700000002}"#;
    assert_eq!(
        read(&["user"], log),
        [
            (1_700_000_000_500_000, "al\"ice".to_owned(), 3),
            (1_700_000_001_000_000, "7".to_owned(), 1),
            (1_700_000_002_000_000, "true".to_owned(), 1),
        ]
    );
}

#[test]
fn json_lines_name_the_wrong_field() {
    let error = |line| error(&["user"], LogFormat::JsonLines, "", line);
    assert!(error(r#"{"time": 1}"#).contains("no field \"user\""));
    assert!(error(r#"{"time": 1, "user": null}"#).contains("no field \"user\""));
    assert!(error(r#"{"user": "a"}"#).contains("no field \"time\""));
    assert!(error(r#"{"time": "soon", "user": "a"}"#).contains("\"soon\" is no time"));
    assert!(error(r#"{"time": 1, "user": "a", "cost": -1}"#).contains("\"-1\" is no cost"));
    assert!(error(r#"{"time": 1, "user": ["a"]}"#).contains("a text or a number in the field \"user\""));
    assert!(error("[1]").contains("an object"));
    assert!(error(r#"{"time": 1, "user": "a"} x"#).contains("trailing"));
}

#[test]
fn csv_has_columns_in_any_order_and_quotes() {
    let log = "tenant,cost,time,user\nx,2,1700000000,\"a, \"\"b\"\"\"\ny,,1700000001.25,c\n";
    assert_eq!(
        read(&["user", "tenant"], log),
        [(1_700_000_000_000_000, "a, \"b\"|x".to_owned(), 2), (1_700_000_001_250_000, "c|y".to_owned(), 1),]
    );
}

#[test]
fn csv_lines_with_other_columns_are_errors() {
    let error = |before, line| error(&["user"], LogFormat::Csv, before, line);
    assert!(error("time,user", "1,a,b").contains("it has 3 fields, and the first line has 2"));
    assert!(error("time,name", "1,a").contains("no field \"user\""));
    assert!(error("time,user", "x,a").contains("\"x\" is no time"));
}

#[test]
fn fields_can_have_other_names() {
    let mut traffic = Traffic::new(["user"]);
    let options = LogOptions { time: "ts".to_owned(), cost: "tokens".to_owned(), ..LogOptions::default() };
    let mut parser = LogParser::with_options(LogFormat::JsonLines, &traffic, options).expect("a parser");
    parser.read(r#"{"ts": 1, "tokens": 500, "user": "a"}"#, &mut traffic).expect("a line");
    assert_eq!((traffic.arrivals()[0].time.as_micros(), traffic.arrivals()[0].cost), (1_000_000, 500));
}

/// Reads a log with a filter: the values of the first column, the number of filtered lines, the missing fields.
fn filtered(filter: Filter, columns: &[&str], log: &str) -> (Vec<String>, usize, Vec<String>) {
    let mut traffic = Traffic::new(columns.iter().copied());
    let format = LogFormat::detect(log.lines().next().expect("a line"));
    let options = LogOptions { filter, ..LogOptions::default() };
    let mut parser = LogParser::with_options(format, &traffic, options).expect("a parser");
    let mut filtered = 0;
    for line in log.lines() {
        let read = parser.read(line, &mut traffic).unwrap_or_else(|error| panic!("{line}: {error}"));
        filtered += usize::from(read == ReadLine::Filtered);
    }
    let arrivals = traffic.arrivals();
    let values = arrivals.iter().filter_map(|arrival| traffic.values(arrival).next().map(str::to_owned)).collect();
    (values, filtered, parser.missing_filter_fields().to_vec())
}

fn filter(only: &[&str], exclude: &[&str]) -> Filter {
    let filter = only.iter().try_fold(Filter::default(), |filter, rule| filter.only(rule));
    filter.and_then(|filter| exclude.iter().try_fold(filter, |filter, rule| filter.exclude(rule))).expect("rules")
}

#[test]
fn filter_selects_lines_by_columns_and_by_other_fields() {
    let log = format!("{COMMON}\n{COMBINED}");
    let addresses = |only: &[&str], exclude: &[&str]| filtered(filter(only, exclude), &["address"], &log).0;
    assert_eq!(addresses(&["method=GET"], &[]), ["192.0.2.1"]);
    assert_eq!(addresses(&["path=/"], &[]), ["2001:db8::"]);
    assert_eq!(addresses(&[], &["address=192.0.*"]), ["2001:db8::"]);
    // The second line has no user, so no rule on the user matches it.
    assert_eq!(addresses(&[], &["user=*"]), ["2001:db8::"]);
    assert_eq!(filtered(filter(&["user=alice"], &[]), &["user"], &log).1, 1);

    let json = r#"{"time": 1, "user": "a", "time_ms": 5, "route": "/x"}
{"time": 2, "user": "b", "route": "/y"}"#;
    assert_eq!(filtered(filter(&[], &["route=/y"]), &["user"], json), (vec!["a".to_owned()], 1, vec![]));
    // A rule on the time, which is a field too.
    assert_eq!(filtered(filter(&["time=2"], &[]), &["user"], json).0, ["b"]);

    let csv = "route,time,user\n/x,1,a\n/y,2,b\n";
    assert_eq!(filtered(filter(&["route=/y"], &[]), &["user"], csv), (vec!["b".to_owned()], 1, vec![]));
}

/// A line that is left out needs no key.
#[test]
fn filtered_line_may_lack_a_column() {
    let log = format!("{COMMON}\n{COMBINED}");
    assert_eq!(filtered(filter(&[], &["method=POST"]), &["user"], &log).0, ["alice"]);
}

#[test]
fn filter_field_that_no_line_has_is_reported() {
    let csv = "time,user,route\n1,a,/x\n";
    let (users, _, missing) = filtered(filter(&[], &["rout=/x", "route=/z"]), &["user"], csv);
    assert_eq!((users, missing), (vec!["a".to_owned()], vec!["rout".to_owned()]));
    let options = LogOptions { filter: filter(&["verb=GET"], &[]), ..LogOptions::default() };
    let error = LogParser::with_options(LogFormat::AccessLog, &Traffic::new(["user"]), options).expect_err("no field");
    assert!(error.to_string().contains("an access log has no column \"verb\""), "{error}");
}

/// A limit can count by the field of the cost.
#[test]
fn column_may_be_the_field_of_the_cost() {
    assert_eq!(read(&["cost"], "time,cost\n1,3\n"), [(1_000_000, "3".to_owned(), 3)]);
}

#[test]
fn format_is_detected_from_the_first_line() {
    assert_eq!(LogFormat::detect(COMMON), LogFormat::AccessLog);
    assert_eq!(LogFormat::detect(" {\"time\": 1}"), LogFormat::JsonLines);
    assert_eq!(LogFormat::detect("time,user"), LogFormat::Csv);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary text is an arrival or an error, and the next line is read as if it came first.
    #[test]
    fn arbitrary_lines_do_not_disturb_the_next_line(line in r#"[ -~é"\[\]{}:,]{0,60}"#) {
        for (format, header, valid) in [
            (LogFormat::AccessLog, "", COMMON),
            (LogFormat::JsonLines, "", r#"{"time": 971211336, "user": "alice"}"#),
            (LogFormat::Csv, "time,user", "971211336,alice"),
        ] {
            let mut traffic = Traffic::new(["user"]);
            let mut parser = LogParser::new(format, &traffic).expect("a parser");
            parser.read(header, &mut traffic).expect("a header");
            let _ = parser.read(&line, &mut traffic);
            let before = traffic.len();
            prop_assert!(before <= 1);
            parser.read(valid, &mut traffic).expect("a valid line");
            let expected = 971_211_336_000_000;
            let arrivals = traffic.arrivals();
            let last = arrivals.iter().find(|arrival| arrival.time.as_micros() == expected).expect("the valid line");
            prop_assert_eq!(traffic.values(last).collect::<Vec<_>>(), ["alice"]);
            prop_assert_eq!(traffic.len(), before + 1);
        }
    }
}
