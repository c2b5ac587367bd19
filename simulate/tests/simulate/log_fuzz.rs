//! The reader of recorded traffic. The fuzz target `log` includes this file.

use tower_ratelimit_simulate::{LogFormat, LogParser, Traffic};

/// Reads the lines of the input in the format that its first line has. Panics if a law of the reader is violated.
pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let format = LogFormat::detect(text.lines().next().unwrap_or_default());
    let mut traffic = Traffic::new(["address", "user"]);
    let mut parser = LogParser::new(format, &traffic).expect("columns of each format");
    for line in text.lines() {
        let before = traffic.len();
        let result = parser.read(line, &mut traffic);
        assert!(traffic.len() <= before + 1);
        assert!(result.is_ok() || traffic.len() == before, "a malformed line adds nothing");
    }
    let valid = match format {
        LogFormat::AccessLog => "192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 2326",
        LogFormat::JsonLines => r#"{"time": 971211336, "address": "192.0.2.1", "user": "alice"}"#,
        // The first line of the input names the columns.
        _ => "",
    };
    let before = traffic.len();
    parser.read(valid, &mut traffic).expect("the line after a malformed one is read");
    assert_eq!(traffic.len(), before + usize::from(!valid.is_empty()));
    assert!(traffic.arrivals().is_sorted_by_key(|arrival| arrival.time));
    if let Some(last) = traffic.arrivals().last() {
        assert_eq!(traffic.values(last).count(), 2);
    }
}
