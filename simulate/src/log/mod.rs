//! Parsers of recorded traffic: access logs, JSON lines and CSV, one line at a time.

mod access;
mod address;
mod csv;
mod fields;
mod filter;
mod json;
mod parser;
mod time;

pub use self::filter::Filter;
pub use self::parser::{LogFormat, LogOptions, LogParser, ReadLine};
