//! `CL.THROTTLE`: a command that decides by itself.

mod builder;
mod limiter;
mod rate;
mod throttle;

pub use self::builder::RedisCellBuilder;
pub use self::limiter::RedisCell;
