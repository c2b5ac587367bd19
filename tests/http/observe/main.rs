//! Observers receive one terminal event per request, metrics that agree with the responses, and no secrets.

mod alerts;
mod documented;
mod events;
mod logs;
mod near_limit;
mod observed;
mod pacing;
#[path = "../../servers/process.rs"]
mod process;
mod prometheus;
mod proxies;
#[path = "../../../src/random.rs"]
mod random;
#[path = "../../servers/server.rs"]
mod server;
mod settlements;
mod standard_error;
mod stores;
mod support;
