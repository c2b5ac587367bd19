//! A store in Redis, shared by many processes.
//!
//! From the bottom up; each module uses only those above it:
//!
//! | Module | Responsibility |
//! |---|---|
//! | `random_id` | random numbers |
//! | `connect` | connections, and the meaning of their errors |
//! | `cluster` | Redis Cluster: slots, nodes, redirections |
//! | `server`, `pool` | `RedisServer`: one server, a cluster or Sentinel; a pool that the user brings |
//! | `health` | circuit breakers |
//! | `script` | the Lua script: text, input, reply, replay |
//! | `holds` | sessions of held costs |
//! | `lease` | leases: units that this process holds and spends |
//! | `client` | queues, worker tasks, batches |
//! | `limiter_state`, `leased_decision`, `health_check`, `limiter`, `builder` | `Redis` |
//! | `cell` | `RedisCell`, over the command CL.THROTTLE |

mod builder;
#[cfg(feature = "redis-cell")]
mod cell;
mod client;
mod cluster;
mod conflicts;
mod connect;
mod health;
mod health_check;
mod hold_by_id;
mod holds;
mod key_format;
mod lease;
mod leased_decision;
mod limiter;
mod limiter_state;
mod limits;
#[cfg(test)]
mod overload_tests;
#[cfg(all(test, feature = "redis-cell"))]
mod pipeline_tests;
#[cfg(feature = "bb8")]
mod pool;
mod random_id;
#[cfg(any(test, fuzzing))]
mod reply_tests;
mod script;
mod server;
#[cfg(test)]
mod simulation_tests;

pub use self::builder::RedisBuilder;
#[cfg(feature = "redis-cell")]
pub use self::cell::{RedisCell, RedisCellBuilder};
pub use self::connect::RedisCredentials;
#[cfg(feature = "redis-tls")]
pub use self::connect::RedisTls;
pub use self::lease::Lease;
pub use self::limiter::Redis;
pub use self::limits::{IntoRedisLimits, RedisLimit};
#[cfg(any(test, fuzzing))]
pub use self::reply_tests::check as check_any_replies;
pub use self::server::RedisServer;
