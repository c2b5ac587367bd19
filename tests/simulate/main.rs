//! Simulations: decisions, reports, parsers, suggestions, pictures, and the page of the playground.

mod live;
mod logs;
mod reports;
mod suggestions;
mod support;
