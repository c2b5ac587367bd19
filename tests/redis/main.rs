//! Redis, against a real one.

mod basics;
mod differential;
mod server;
