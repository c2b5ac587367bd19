//! The arguments of the command.

use std::path::PathBuf;

use lexopt::prelude::*;
use tower_ratelimit_simulate::{AnyError, LogFormat, LogOptions, Share};

/// What the command was asked to do.
pub(crate) enum Task {
    PrintHelp,
    Simulate(Box<Arguments>),
}

pub(crate) struct Arguments {
    pub(crate) policies: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) format: Option<LogFormat>,
    pub(crate) options: LogOptions,
    pub(crate) suggest: Option<Share>,
    pub(crate) counted: Counted,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) key: Option<String>,
    pub(crate) csv: Option<PathBuf>,
}

/// What the share of `--suggest` is a share of.
#[derive(Clone, Copy)]
pub(crate) enum Counted {
    Keys,
    Requests,
}

pub(crate) const USAGE: &str = "usage: simulate LIMITS.toml LOG
  LIMITS.toml                the limits; `by` is the field of the log whose values are the keys, or \"all\"
  LOG                        an access log, JSON lines or CSV; - reads the standard input

  --format access|json|csv   the format of the log; default: by its first line
  --time FIELD               the field of the time in JSON and CSV; default: time
  --cost FIELD               the field of the cost in JSON and CSV; default: cost
  --only FIELD=PATTERN       read only these lines, such as path=/api/*; a * stands for any text
  --exclude FIELD=PATTERN    leave these lines out: requests that your layer exempts, or abuse
  --suggest SHARE            suggest limits that deny no request of the other keys; SHARE of the keys, such as 0.1%,
                             rounded up, may be denied
  --of keys|requests         what SHARE is a share of; default: keys
  --svg FILE                 write a chart
  --key KEY                  the key whose remaining cost the chart shows; default: the key with the most denied
                             requests
  --csv FILE                 write each decision";

impl Task {
    pub(crate) fn parse() -> Result<Self, AnyError> {
        let mut paths = Vec::new();
        let (mut format, mut suggest, mut svg, mut csv, mut key) = (None, None, None, None, None);
        let (mut options, mut counted) = (LogOptions::default(), None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Value(path) => paths.push(PathBuf::from(path)),
                Long("format") => format = Some(parser.value()?.parse_with(parse_format)?),
                Long("time") => options.time = parser.value()?.string()?,
                Long("cost") => options.cost = parser.value()?.string()?,
                Long("only") => options.filter = options.filter.only(&parser.value()?.string()?)?,
                Long("exclude") => options.filter = options.filter.exclude(&parser.value()?.string()?)?,
                Long("suggest") => suggest = Some(parser.value()?.parse_with(str::parse)?),
                Long("of") => counted = Some(parser.value()?.parse_with(parse_counted)?),
                Long("svg") => svg = Some(parser.value()?.into()),
                Long("key") => key = Some(parser.value()?.string()?),
                Long("csv") => csv = Some(parser.value()?.into()),
                Short('h') | Long("help") => return Ok(Self::PrintHelp),
                other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
            }
        }
        let Ok([policies, log]) = <[PathBuf; 2]>::try_from(paths) else { return Err(USAGE.into()) };
        if counted.is_some() && suggest.is_none() {
            return Err("--of needs --suggest; add --suggest 0.1%".into());
        }
        if key.is_some() && svg.is_none() {
            return Err("--key needs --svg; add --svg FILE".into());
        }
        let counted = counted.unwrap_or(Counted::Keys);
        let arguments = Arguments { policies, log, format, options, suggest, counted, svg, key, csv };
        Ok(Self::Simulate(Box::new(arguments)))
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

fn parse_counted(text: &str) -> Result<Counted, String> {
    match text {
        "keys" => Ok(Counted::Keys),
        "requests" => Ok(Counted::Requests),
        _ => Err(format!("{text:?} cannot be counted: use keys or requests")),
    }
}
