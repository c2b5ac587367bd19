//! Files: the policies, the log, and what the command writes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{AnyError, LogFormat, LogParser, ReadLine, Traffic};

use super::arguments::Arguments;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    limits: Vec<Policy>,
}

pub(crate) fn read_policies(path: &Path) -> Result<Vec<Policy>, AnyError> {
    let text = fs::read_to_string(path).map_err(|error| in_file(path, error))?;
    let config: Config = toml::from_str(&text).map_err(|error| in_file(path, error))?;
    Ok(config.limits)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), AnyError> {
    fs::write(path, text).map_err(|error| in_file(path, error))
}

pub(crate) fn in_file(path: &Path, error: impl std::fmt::Display) -> AnyError {
    format!("{}: {error}", path.display()).into()
}

/// Reads the log. Prints how many lines the filter leaves out, how many cannot be read, and the first of these.
pub(crate) fn read_traffic(arguments: &Arguments, policies: &[Policy]) -> Result<Traffic, AnyError> {
    let path = &arguments.log;
    let mut log = open(path).map_err(|error| in_file(path, error))?;
    let mut traffic = Traffic::for_policies(policies);
    let (mut parser, mut bytes, mut number) = (None, Vec::new(), 0_u64);
    let (mut filtered, mut skipped, mut first_error) = (0_u64, 0_u64, None);
    while log.read_until(b'\n', &mut bytes).map_err(|error| in_file(path, error))? > 0 {
        number += 1;
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if parser.is_none() && !line.is_empty() {
            let format = arguments.format.unwrap_or_else(|| LogFormat::detect(line));
            parser = Some(LogParser::with_options(format, &traffic, arguments.options.clone())?);
        }
        match parser.as_mut().map(|parser| parser.read(line, &mut traffic)) {
            Some(Ok(ReadLine::Filtered)) => filtered += 1,
            Some(Err(error)) => {
                skipped += 1;
                first_error.get_or_insert_with(|| format!("line {number}: {error}"));
            }
            _ => {}
        }
        bytes.clear();
    }
    if let Some(error) = first_error {
        eprintln!("{}: skipped {skipped} of {number} lines; the first is {error}", path.display());
    }
    if let Some(field) = parser.as_ref().and_then(|parser| parser.missing_filter_fields().first()) {
        return Err(in_file(path, format!("no line has the field {field:?} of --only or --exclude")));
    }
    if filtered > 0 {
        eprintln!("{}: left out {filtered} of {number} lines by --only and --exclude", path.display());
    }
    Ok(traffic)
}

/// Opens the log behind a progress bar, which is shown on a terminal only.
fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let (log, length): (Box<dyn Read>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        (Box::new(file), Some(length))
    };
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left") {
        bar.set_style(style);
    }
    // `with_finish` is not set: a dropped bar is cleared.
    Ok(Box::new(BufReader::with_capacity(1 << 20, bar.wrap_read(log))))
}
