use redis::{Cmd, RedisError, Value};

use super::rate::{Rate, ThrottleReply};
use crate::error::Error;
use crate::store::redis::connect::Failure;

/// A command of a `RedisCell`.
#[derive(Clone, Copy)]
pub(super) enum CommandKind {
    /// CL.THROTTLE with this quantity.
    Acquire(u64),
    /// CL.THROTTLE with a quantity of 0, which always succeeds.
    Peek,
    /// DEL.
    Reset,
}

impl CommandKind {
    pub(super) fn to_cmd(self, key: &[u8], rate: Rate) -> Cmd {
        let quantity = match self {
            Self::Acquire(cost) => cost,
            Self::Peek => 0,
            Self::Reset => {
                let mut delete = redis::cmd("DEL");
                delete.arg(key);
                return delete;
            }
        };
        let Rate { burst, count, seconds } = rate;
        let mut throttle = redis::cmd("CL.THROTTLE");
        // The command calls the burst without the first request `max_burst`.
        throttle.arg(key).arg(burst - 1).arg(count).arg(seconds).arg(quantity);
        throttle
    }
}

/// Parses the reply to CL.THROTTLE: five integers.
pub(super) fn parse_reply(reply: &Value) -> Result<ThrottleReply, Error> {
    let Value::Array(numbers) = reply else { return Err(unexpected_reply()) };
    let [Value::Int(limited), Value::Int(_), Value::Int(remaining), Value::Int(retry), Value::Int(reset)] = numbers[..]
    else {
        return Err(unexpected_reply());
    };
    Ok(ThrottleReply {
        limited: limited != 0,
        remaining: u64::try_from(remaining).unwrap_or(0),
        retry_after: u64::try_from(retry).ok(),
        reset_after: u64::try_from(reset).ok(),
    })
}

fn unexpected_reply() -> Error {
    Error::unavailable("unexpected reply to CL.THROTTLE; check the version of redis-cell")
}

/// Classifies an error of CL.THROTTLE.
pub(super) fn classify(error: RedisError, address: &str) -> Failure {
    let detail = error.detail().unwrap_or_default();
    let message = if detail.contains("nknown command") {
        "CL.THROTTLE failed: this Redis has no CL.THROTTLE; load the module redis-cell, or use Dragonfly"
    } else if detail.contains("wrong type") || error.code() == Some("WRONGTYPE") {
        "CL.THROTTLE failed: a key of the limiter holds another type; choose another prefix"
    } else if error.code() == Some("NOPERM") {
        "CL.THROTTLE failed: the user (ACL) may not run it on the limiter's keys; grant CL.THROTTLE and the keys"
    } else {
        let failure = Failure::of_call(error.clone(), address);
        if !failure.server_responded {
            return failure;
        }
        "CL.THROTTLE failed: Redis returned an error; see the source of this error"
    };
    Failure::server_responded(Error::unavailable(message).with_source(error))
}
