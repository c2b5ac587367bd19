//! `RedisCell`: one limit by the command CL.THROTTLE of the module redis-cell.

mod limiter;
mod rate;

pub use self::limiter::{RedisCell, RedisCellBuilder};
