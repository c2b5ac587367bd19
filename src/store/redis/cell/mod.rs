//! `RedisCell`: one limit by the command CL.THROTTLE of the module redis-cell.

mod limiter;
mod link;
mod rate;

pub use self::limiter::{RedisCell, RedisCellBuilder};
