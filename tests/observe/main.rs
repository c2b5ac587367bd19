//! What observers are told: each request's one end, in numbers that agree with what was sent; and nothing that is secret.

mod dashboard;
mod documented;
mod events;
mod logs;
mod prometheus;
#[allow(dead_code, reason = "the tests of Redis use all of it")]
#[path = "../redis/server.rs"]
mod server;
mod stores;
mod support;
