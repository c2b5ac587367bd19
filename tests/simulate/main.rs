//! Simulations: decisions, reports, parsers, suggestions, pictures, and the page of the playground.

mod browser;
mod command;
mod guide;
mod live;
mod logs;
mod pictures;
mod playground;
mod reports;
mod suggestions;
mod support;
