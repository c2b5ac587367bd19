use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::oneshot;

use super::rate::{Rate, Told};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::store::redis::client::trade::{Answer, Done, Parcel, Trade};
use crate::store::redis::cluster::slot::slot;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;

/// Errands, each as a command of its own; those that travel together, as a pipeline.
pub(crate) struct Throttle {
    pub(crate) rate: Rate,
    /// The module does not tell its time.
    pub(crate) clock: SystemClock,
}

pub(crate) struct Errand {
    pub(crate) key: Vec<u8>,
    pub(crate) what: What,
    pub(crate) reply: oneshot::Sender<Answer>,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    Acquisition(u64),
    Peek(u64),
    Reset,
}

impl Parcel for Errand {
    fn weight(&self) -> usize {
        1
    }

    fn slot(&self) -> u16 {
        slot(&self.key)
    }

    fn reply(&self) -> &oneshot::Sender<Answer> {
        &self.reply
    }

    fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

impl Trade for Throttle {
    type Parcel = Errand;
    type Batch = Vec<Errand>;
    type Reply = Vec<Value>;

    fn batch(&self, errands: Vec<Errand>) -> Vec<Errand> {
        errands
    }

    fn parcels(batch: Vec<Errand>) -> Vec<Errand> {
        batch
    }

    async fn exchange(
        &self,
        connection: &dyn Connection,
        _slot: u16,
        batch: &Vec<Errand>,
    ) -> Result<Vec<Value>, RedisError> {
        let mut commands = Pipeline::with_capacity(batch.len());
        for errand in batch {
            commands.add_command(self.command(errand));
        }
        connection.pipe(Arc::new(commands)).await
    }

    fn answer(&self, batch: Vec<Errand>, replies: Vec<Value>) -> Result<(), Failure> {
        if replies.len() != batch.len() {
            let failure = unexpected();
            for errand in batch {
                errand.answer(Err(failure.error.clone()));
            }
            return Err(failure);
        }
        let mut result = Ok(());
        for (errand, reply) in batch.into_iter().zip(replies) {
            match self.outcome(errand.what, reply) {
                Ok(outcome) => errand.answer(Ok(outcome)),
                Err(failure) => {
                    errand.answer(Err(failure.error.clone()));
                    result = Err(failure);
                }
            }
        }
        result
    }

    fn explain(&self, error: RedisError) -> Failure {
        let detail = error.detail().unwrap_or_default();
        let message = if detail.contains("nknown command") {
            "this Redis has no CL.THROTTLE: load the module redis-cell into it, or use Dragonfly, which has it built in"
        } else if detail.contains("wrong type") || error.code() == Some("WRONGTYPE") {
            "a key of the limiter is in use for something else: choose another prefix"
        } else if error.code() == Some("NOPERM") {
            "the user of this connection may not run CL.THROTTLE on the limiter's keys"
        } else {
            let failure = Failure::of(error.clone());
            if !failure.answered {
                return failure;
            }
            "Redis refused CL.THROTTLE"
        };
        Failure::answered(Error::unavailable(message).with_source(error))
    }

    fn trial(&self, prefix: &str) -> Cmd {
        let errand = Errand {
            key: format!("{prefix}:cell:probe").into_bytes(),
            what: What::Peek(0),
            reply: oneshot::channel().0,
        };
        self.command(&errand)
    }
}

impl Throttle {
    fn command(&self, errand: &Errand) -> Cmd {
        let quantity = match errand.what {
            What::Acquisition(cost) => cost,
            What::Peek(_) => 0,
            What::Reset => {
                let mut delete = redis::cmd("DEL");
                delete.arg(&errand.key);
                return delete;
            }
        };
        let Rate { burst, count, seconds } = self.rate;
        let mut throttle = redis::cmd("CL.THROTTLE");
        throttle.arg(&errand.key).arg(burst - 1).arg(count).arg(seconds).arg(quantity);
        throttle
    }

    fn outcome(&self, what: What, reply: Value) -> Result<Done, Failure> {
        let reply = reply.extract_error().map_err(|error| self.explain(error))?;
        let (cost, is_peek) = match what {
            What::Acquisition(cost) => (cost, false),
            What::Peek(cost) => (cost, true),
            What::Reset => return Ok(Done::Operated),
        };
        let told = told(&reply).ok_or_else(unexpected)?;
        Ok(Done::Decided(self.rate.decision(self.clock.now(), told, cost, is_peek), None))
    }
}

fn told(reply: &Value) -> Option<Told> {
    let Value::Array(numbers) = reply else { return None };
    let [Value::Int(limited), Value::Int(_), Value::Int(remaining), Value::Int(retry), Value::Int(reset)] = numbers[..]
    else {
        return None;
    };
    Some(Told {
        limited: limited != 0,
        remaining: u64::try_from(remaining).unwrap_or(0),
        retry_after: u64::try_from(retry).ok(),
        reset_after: u64::try_from(reset).ok(),
    })
}

fn unexpected() -> Failure {
    let error = Error::unavailable("Redis answered CL.THROTTLE with what that never returns");
    Failure::answered(error)
}
