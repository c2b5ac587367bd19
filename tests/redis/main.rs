//! Redis, against a real one.

mod basics;
mod differential;
mod example;
mod server;
