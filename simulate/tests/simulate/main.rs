//! The programs `simulate` and `playground`: decisions, reports, parsers, suggestions, pictures, and the page.

mod browser;
mod command;
mod fuzz;
mod guide;
mod live;
mod logs;
mod pictures;
mod playground;
#[path = "../../../tests/servers/process.rs"]
mod process;
mod reports;
mod suggestions;
mod support;
