use super::csv::CsvLines;
use super::fields::Fields;
use super::{Filter, access, address, json, time};
use crate::Traffic;
use tower_ratelimit::Error;

/// The format of recorded traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// The common or the combined log format of web servers, also with the virtual host in front. Its columns are
    /// `address`, `user`, `method` and `path`.
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

/// The options of a [`LogParser`].
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The field of the time in JSON lines and CSV. Default: `time`.
    pub time: String,
    /// The field of the cost in JSON lines and CSV. Default: `cost`.
    pub cost: String,
    /// The lines that are read. Default: all.
    pub filter: Filter,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { time: "time".to_owned(), cost: "cost".to_owned(), filter: Filter::default() }
    }
}

/// What a [`LogParser`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLine {
    /// An arrival, which is in the traffic now.
    Arrival,
    /// A line that the filter does not select.
    Filtered,
    /// An empty line, or the first line of CSV.
    NoRecord,
}

/// Parses the lines of a log into the arrivals of [`Traffic`].
///
/// A line has a time, a cost, and a field for each column of the traffic. In JSON lines and CSV the time is the field
/// `time`: a text of RFC 3339, or the seconds, milliseconds, microseconds or nanoseconds since the Unix epoch, with an
/// optional fraction. A time must be between the years 2000 and 2100, so that its unit is known; a number below 100,000,000
/// is the seconds of a trace that starts at 0. The cost is the field `cost`, a whole number, and 1 in a line without it. An
/// access log has no costs.
///
/// An IPv6 address in a column counts as its /64 network, as the layer counts it.
///
/// ```
/// use tower_ratelimit_simulate::{LogFormat, LogParser, Traffic};
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
    /// The columns of the traffic, then the other fields.
    fields: Fields,
    columns: usize,
    time: usize,
    cost: usize,
    filter: Filter,
    /// The fields of the filter that no line had so far.
    missing: Vec<String>,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    AccessLog,
    Json,
    Csv(Box<CsvLines>),
}

impl LogParser {
    /// Creates a parser of lines in this format, with the columns of the traffic and the default options.
    ///
    /// # Errors
    ///
    /// Returns an error if the format has no column of a name that the traffic has.
    pub fn new(format: LogFormat, traffic: &Traffic) -> Result<Self, Error> {
        Self::with_options(format, traffic, LogOptions::default())
    }

    /// Creates a parser of lines in this format, with the columns of the traffic.
    ///
    /// # Errors
    ///
    /// Returns an error if the format has no column of a name that the traffic or the filter has.
    pub fn with_options(format: LogFormat, traffic: &Traffic, options: LogOptions) -> Result<Self, Error> {
        let LogOptions { time, cost, filter } = options;
        let columns = || traffic.columns().iter().map(String::as_str);
        let unknown = columns().chain(filter.fields()).find(|column| !access::COLUMNS.contains(column));
        if let Some(column) = unknown.filter(|_| format == LogFormat::AccessLog) {
            return Err(Error::config(format!(
                "an access log has no column {column:?}; its columns are {}, and a limit can count by \"all\"",
                access::COLUMNS.map(|name| format!("{name:?}")).join(", ")
            )));
        }
        let lines = match format {
            LogFormat::AccessLog => Lines::AccessLog,
            LogFormat::JsonLines => Lines::Json,
            LogFormat::Csv => Lines::Csv(Box::new(CsvLines::new())),
        };
        let fields = Fields::new(columns().chain([time.as_str(), cost.as_str()]).chain(filter.fields()));
        let index_of = |name| fields.index_of(name).unwrap_or(usize::MAX);
        let (time, cost) = (index_of(&time), index_of(&cost));
        let missing = filter.fields().map(str::to_owned).collect();
        Ok(Self { fields, columns: traffic.columns().len(), time, cost, filter, missing, lines })
    }

    /// Adds the arrival of one line to the traffic, if the filter selects the line.
    ///
    /// # Errors
    ///
    /// Returns an error if the line is malformed, or lacks the time or a column. The next line can then be read.
    pub fn read(&mut self, line: &str, traffic: &mut Traffic) -> Result<ReadLine, Error> {
        if line.trim().is_empty() {
            return Ok(ReadLine::NoRecord);
        }
        self.push(line, traffic)
            .map_err(|problem| Error::config(format!("line not read: {problem}; correct or remove it")))
    }

    /// Returns the fields of the filter that no line had. Such a rule has a wrong name.
    #[must_use]
    pub fn missing_filter_fields(&self) -> &[String] {
        &self.missing
    }

    fn push(&mut self, line: &str, traffic: &mut Traffic) -> Result<ReadLine, String> {
        self.fields.clear();
        let is_record = match &mut self.lines {
            Lines::AccessLog => access::read(line, self.time, &mut self.fields).map(|()| true)?,
            Lines::Json => json::read(line, &mut self.fields).map(|()| true)?,
            Lines::Csv(lines) => lines.read(line, &mut self.fields)?,
        };
        if !is_record {
            return Ok(ReadLine::NoRecord);
        }
        let fields = &self.fields;
        self.missing.retain(|name| fields.get_named(name).is_none());
        if !self.filter.selects(|name| fields.get_named(name)) {
            return Ok(ReadLine::Filtered);
        }
        let missing = |name: &str| format!("it has no field {name:?}");
        let text = fields.get(self.time).ok_or_else(|| missing(fields.name(self.time)))?;
        let parse = if matches!(self.lines, Lines::AccessLog) { time::parse_access_time } else { time::parse_time };
        let time = parse(text).ok_or_else(|| format!("{text:?} is no time between the years 2000 and 2100"))?;
        let cost = match fields.get(self.cost).map(str::trim) {
            None | Some("") => 1,
            Some(text) => text.parse().map_err(|_| format!("{text:?} is no cost"))?,
        };
        for index in 0..self.columns {
            if let Some(own) = self.fields.get(index).and_then(address::counted) {
                self.fields.set(index, &own);
            }
        }
        traffic.push(time, self.fields.all_up_to(self.columns).map_err(missing)?, cost);
        Ok(ReadLine::Arrival)
    }
}
