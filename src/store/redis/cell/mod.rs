//! `RedisCell`: one limit by the command CL.THROTTLE of the module redis-cell.

mod builder;
mod limiter;
mod link;
mod rate;

pub use self::builder::RedisCellBuilder;
pub use self::limiter::RedisCell;
