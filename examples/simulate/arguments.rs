//! The arguments of the command.

use std::path::PathBuf;

use lexopt::prelude::*;
use tower_ratelimit::simulate::LogFormat;

use super::AnyError;

pub(crate) struct Arguments {
    pub(crate) policies: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) format: Option<LogFormat>,
    pub(crate) time: String,
    pub(crate) cost: String,
    pub(crate) suggest: Option<Share>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) csv: Option<PathBuf>,
}

const USAGE: &str = "usage: simulate POLICIES.toml LOG
  --format access|json|csv   the format of the log; default: by its first line
  --time FIELD               the field of the time in JSON and CSV; default: time
  --cost FIELD               the field of the cost in JSON and CSV; default: cost
  --suggest SHARE            suggest limits that deny at most this share of the requests, such as 0.1%
  --svg FILE                 write a chart
  --csv FILE                 write each decision";

impl Arguments {
    pub(crate) fn parse() -> Result<Self, AnyError> {
        let mut paths = Vec::new();
        let (mut format, mut suggest, mut svg, mut csv) = (None, None, None, None);
        let (mut time, mut cost) = ("time".to_owned(), "cost".to_owned());
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Value(path) => paths.push(PathBuf::from(path)),
                Long("format") => format = Some(parser.value()?.parse_with(parse_format)?),
                Long("time") => time = parser.value()?.string()?,
                Long("cost") => cost = parser.value()?.string()?,
                Long("suggest") => suggest = Some(parser.value()?.parse_with(Share::parse)?),
                Long("svg") => svg = Some(parser.value()?.into()),
                Long("csv") => csv = Some(parser.value()?.into()),
                Short('h') | Long("help") => return Err(USAGE.into()),
                other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
            }
        }
        let Ok([policies, log]) = <[PathBuf; 2]>::try_from(paths) else { return Err(USAGE.into()) };
        Ok(Self { policies, log, format, time, cost, suggest, svg, csv })
    }
}

fn parse_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "access" => Ok(LogFormat::AccessLog),
        "json" => Ok(LogFormat::JsonLines),
        "csv" => Ok(LogFormat::Csv),
        _ => Err(format!("{text:?} is no format: use access, json or csv")),
    }
}

/// A share of all requests, in millionths.
#[derive(Clone, Copy)]
pub(crate) struct Share(u64);

impl Share {
    /// Parses a percentage with at most four decimals, such as `0.1%`.
    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is no share: use a percentage such as 0.1%");
        let number = text.strip_suffix('%').ok_or_else(invalid)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if decimals.len() > 4 || whole.is_empty() {
            return Err(invalid());
        }
        let millionths = format!("{whole}{decimals:0<4}").parse().map_err(|_| invalid())?;
        if millionths > 1_000_000 { Err(invalid()) } else { Ok(Self(millionths)) }
    }

    /// Returns the share of a number of requests, rounded down.
    pub(crate) fn of(self, requests: usize) -> u64 {
        u64::try_from(requests as u128 * u128::from(self.0) / 1_000_000).unwrap_or(u64::MAX)
    }
}
