use super::csv::CsvLines;
use super::fields::Fields;
use super::{access, json, time};
use crate::error::Error;
use crate::simulate::Traffic;

/// The format of recorded traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// The common or the combined log format of web servers. Its columns are `address`, `user` and `path`.
    AccessLog,
    /// One JSON object per line.
    JsonLines,
    /// Comma-separated values, whose first line names the columns.
    Csv,
}

impl LogFormat {
    /// Returns the format of a file with this first line.
    #[must_use]
    pub fn detect(first_line: &str) -> Self {
        if first_line.trim_start().starts_with('{') {
            Self::JsonLines
        } else if access::is_access_log(first_line) {
            Self::AccessLog
        } else {
            Self::Csv
        }
    }
}

/// Parses the lines of a log into the arrivals of [`Traffic`].
///
/// A line has a time, a cost, and a field for each column of the traffic. In JSON lines and CSV the time is the field
/// `time`: seconds since the Unix epoch with an optional fraction, or a text of RFC 3339. The cost is the field `cost`,
/// a whole number, and 1 in a line without it. An access log has no costs.
///
/// ```
/// use tower_ratelimit::simulate::{LogFormat, LogParser, Traffic};
///
/// let line = r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326"#;
/// let mut traffic = Traffic::new(["address"]);
/// let mut parser = LogParser::new(LogFormat::detect(line), &traffic)?;
/// parser.read(line, &mut traffic)?;
/// assert_eq!(traffic.arrivals()[0].time.as_micros(), 971_211_336_000_000);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Debug)]
pub struct LogParser {
    fields: Fields,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    AccessLog,
    Json,
    Csv(Box<CsvLines>),
}

/// The index of the time in the fields, and of the cost. The columns follow.
const TIME: usize = 0;
const COST: usize = 1;
const COLUMNS: usize = 2;

impl LogParser {
    /// Creates a parser of lines in this format, with the columns of the traffic.
    ///
    /// # Errors
    ///
    /// Returns an error if the format has no column of a name that the traffic has.
    pub fn new(format: LogFormat, traffic: &Traffic) -> Result<Self, Error> {
        Self::with_fields(format, traffic, "time", "cost")
    }

    /// Creates the same parser as [`new`](Self::new), with other names of the fields for the time and the cost.
    ///
    /// # Errors
    ///
    /// Returns an error if the format has no column of a name that the traffic has.
    pub fn with_fields(format: LogFormat, traffic: &Traffic, time: &str, cost: &str) -> Result<Self, Error> {
        let unknown = traffic.columns().iter().find(|column| !access::COLUMNS.contains(&column.as_str()));
        if let Some(column) = unknown.filter(|_| format == LogFormat::AccessLog) {
            return Err(Error::config(format!(
                "an access log has no column {column:?}; count by one of {}, or by \"all\"",
                access::COLUMNS.map(|name| format!("{name:?}")).join(", ")
            )));
        }
        let names = [time, cost].into_iter().chain(traffic.columns().iter().map(String::as_str));
        let lines = match format {
            LogFormat::AccessLog => Lines::AccessLog,
            LogFormat::JsonLines => Lines::Json,
            LogFormat::Csv => Lines::Csv(Box::new(CsvLines::new())),
        };
        Ok(Self { fields: Fields::new(names.map(str::to_owned).collect()), lines })
    }

    /// Adds the arrival of one line to the traffic. Empty lines, and the first line of CSV, add nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the line is malformed, or lacks the time or a column. The next line can then be read.
    pub fn read(&mut self, line: &str, traffic: &mut Traffic) -> Result<(), Error> {
        if line.trim().is_empty() {
            return Ok(());
        }
        self.push(line, traffic)
            .map_err(|problem| Error::config(format!("line not read: {problem}; correct or remove it")))
    }

    fn push(&mut self, line: &str, traffic: &mut Traffic) -> Result<(), String> {
        self.fields.clear();
        let is_record = match &mut self.lines {
            Lines::AccessLog => access::read(line, &mut self.fields).map(|()| true)?,
            Lines::Json => json::read(line, &mut self.fields).map(|()| true)?,
            Lines::Csv(lines) => lines.read(line, &mut self.fields)?,
        };
        if !is_record {
            return Ok(());
        }
        let fields = &self.fields;
        let missing = |name: &str| format!("it has no field {name:?}");
        let text = fields.get(TIME).ok_or_else(|| missing(fields.name(TIME)))?;
        let parse = if matches!(self.lines, Lines::AccessLog) { time::parse_access_time } else { time::parse_time };
        let time = parse(text).ok_or_else(|| format!("{text:?} is no time"))?;
        let cost = match fields.get(COST).map(str::trim) {
            None | Some("") => 1,
            Some(text) => text.parse().map_err(|_| format!("{text:?} is no cost"))?,
        };
        let values = fields.all_from(COLUMNS).map_err(missing)?;
        traffic.push(time, values, cost);
        Ok(())
    }
}
