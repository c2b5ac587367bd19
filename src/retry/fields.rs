//! The header fields by which servers state their limits.

use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, header};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use super::times::{Unit, billionths, read_time};

/// A row of the table of providers. Two providers may share a row.
#[derive(PartialEq, Eq)]
struct Fields {
    /// What remains. `None` if the time belongs to a rejection.
    remaining: Option<HeaderName>,
    time: HeaderName,
    unit: Unit,
}

/// The table that the documentation shows.
static TABLE: LazyLock<Vec<Fields>> = LazyLock::new(|| {
    let mut table = Vec::new();
    for fields in include_str!("providers.md").lines().filter_map(Fields::parse) {
        if !table.contains(&fields) {
            table.push(fields);
        }
    }
    table
});

impl Fields {
    /// Reads a row of the table: provider, remaining, time, unit. `None` for all other lines, and for `RateLimit`, whose
    /// value is no time: see [`Statement::add_rate_limit`].
    fn parse(line: &str) -> Option<Self> {
        let mut cells = line.split('|').skip(2).map(|cell| cell.trim().trim_matches('`'));
        let (remaining, time) = (cells.next()?, cells.next()?.parse().ok().filter(|time| *time != "ratelimit")?);
        let unit = match cells.next()? {
            "s" => Unit::Seconds,
            "ms" => Unit::Milliseconds,
            _ => return None,
        };
        Some(Self { remaining: remaining.parse().ok(), time, unit })
    }
}

/// What the fields of a response state about the limits of its server.
#[derive(Default)]
pub(super) struct Statement {
    /// The wait of a rejection, and whether a field of a finer unit states it.
    wait: Option<(bool, Duration)>,
    /// The time of a limit of which the fields do not say what remains.
    reset: Option<Duration>,
    /// The time until all exhausted limits have more available.
    pub(super) exhausted_for: Option<Duration>,
    /// The least that remains of any limit.
    pub(super) remaining: Option<u64>,
    /// Whether `RateLimit` has an exhausted limit without a time. A time below a second is left out.
    is_brief: bool,
}

impl Statement {
    /// Reads all fields, unless a cache has stored them.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let mut statement = Self::default();
        if is_stored(headers) {
            return statement;
        }
        for Fields { remaining, time, unit } in TABLE.iter() {
            let mut times = values(headers, time, |text| read_time(text, *unit, headers));
            let Some(name) = remaining else {
                // A wait in milliseconds is exact. The server rounds the other up.
                let wait = times.into_iter().flatten().max().map(|wait| (*unit == Unit::Milliseconds, wait));
                statement.wait = statement.wait.max(wait);
                continue;
            };
            let remaining = values(headers, name, |text| billionths(text).map(|number| number / 1_000_000_000));
            if remaining.is_empty() {
                statement.reset = statement.reset.max(times.into_iter().flatten().max());
                continue;
            }
            // The fields stand twice behind two limiters. A single time belongs to both.
            let last = times.last().copied().flatten();
            times.resize(remaining.len(), last);
            for (remaining, time) in remaining.into_iter().zip(times) {
                if let Some(remaining) = remaining {
                    statement.add(u64::try_from(remaining).unwrap_or(u64::MAX), time);
                }
            }
        }
        // Each line alone: two limiters may each write a line of a draft before the eighth one.
        for line in headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok()) {
            statement.add_rate_limit(line, headers);
        }
        statement
    }

    /// Adds a limit. `Retry-After` excepted, only an exhausted limit's time counts.
    fn add(&mut self, remaining: u64, reset: Option<Duration>) {
        self.remaining = Some(self.remaining.unwrap_or(u64::MAX).min(remaining));
        if remaining == 0 {
            self.exhausted_for = self.exhausted_for.max(reset);
        }
    }

    /// Reads a line of the field `RateLimit`: a list of limits, or in drafts before the eighth one limit as a dictionary.
    fn add_rate_limit(&mut self, line: &str, headers: &HeaderMap) -> Option<()> {
        // A negative number states nothing.
        let whole = |item: &BareItem| u64::try_from(i64::from(item.as_integer()?)).ok();
        let time = |item: &BareItem| {
            let decimal = || item.as_decimal().map(|decimal| decimal.to_string());
            read_time(&item.as_integer().map(|whole| whole.to_string()).or_else(decimal)?, Unit::Seconds, headers)
        };
        if let Ok(list) = Parser::new(line).parse::<List>() {
            for entry in &list {
                let ListEntry::Item(item) = entry else { continue };
                // A draft may rename `r` to `a`, and `t` to `w`.
                let parameter = |names: [&str; 2]| names.iter().find_map(|name| item.params.get(*name));
                if let Some(remaining) = parameter(["r", "a"]).and_then(whole) {
                    let time = parameter(["t", "w"]).and_then(time);
                    self.is_brief |= remaining == 0 && time.is_none();
                    self.add(remaining, time);
                }
            }
            return None;
        }
        let dictionary: Dictionary = Parser::new(line).parse().ok()?;
        let item = |name: &str| match dictionary.get(name) {
            Some(ListEntry::Item(item)) => Some(&item.bare_item),
            _ => None,
        };
        self.add(item("remaining").and_then(whole)?, item("reset").and_then(time));
        None
    }

    /// Returns the wait that a field for rejections states, such as `Retry-After`.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.wait.map(|(_, wait)| wait)
    }

    /// Whether a limit of `RateLimit` is exhausted without a time, which is then shorter than the second of `wait`.
    pub(super) fn is_brief(&self, wait: Duration) -> bool {
        self.is_brief && self.exhausted_for.is_none() && wait <= Duration::from_secs(1)
    }

    /// Returns the wait of a rejected request: [`wait`](Self::wait), otherwise the time of the limits.
    pub(super) fn rejected_for(&self) -> Option<Duration> {
        self.wait().or(self.exhausted_for).or(self.reset.filter(|_| self.remaining.is_none()))
    }
}

/// Whether a cache has stored the response: its fields speak of another time, and maybe of another client.
fn is_stored(headers: &HeaderMap) -> bool {
    headers.get(header::AGE).is_some_and(|age| age.as_bytes().iter().any(|byte| (b'1'..=b'9').contains(byte)))
}

/// Reads the values of a field: its lines, or if a line is no value, the elements of the list in the line.
fn values<T>(headers: &HeaderMap, name: &HeaderName, read: impl Fn(&str) -> Option<T>) -> Vec<Option<T>> {
    let mut values = Vec::new();
    for line in headers.get_all(name).iter().filter_map(|line| line.to_str().ok()) {
        match read(line.trim()) {
            Some(value) => values.push(Some(value)),
            // Parameters, such as a window, may follow each value.
            None => {
                values.extend(line.split(',').map(|value| read(value.split(';').next().unwrap_or_default().trim())));
            }
        }
    }
    values
}
