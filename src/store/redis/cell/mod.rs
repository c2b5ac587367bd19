//! `RedisCell`: one limit by the command CL.THROTTLE of the module redis-cell, with a small client of its own.

mod builder;
mod client;
mod command;
mod limiter;
mod rate;

pub use self::builder::RedisCellBuilder;
pub use self::limiter::RedisCell;
