use std::sync::Arc;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::error::Error;
use crate::store::redis::bound_limit::RowInfo;
use crate::store::redis::client::batch::Batch;
use crate::store::redis::client::operation::{Order, Steps};
use crate::store::redis::client::trade::{Answer, Parcel, Trade};
use crate::store::redis::cluster::slot::slot;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::holds::registry::Holds;
use crate::store::redis::script::source::Script;

/// Orders, as calls of a script.
pub(crate) struct Calls {
    pub(crate) rows: Vec<RowInfo>,
    pub(crate) script: Script,
    pub(crate) holds: Arc<Holds>,
    /// For tests: decides by this clock instead of the server's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

impl Trade for Calls {
    type Parcel = Order;
    type Batch = Batch;
    type Reply = Value;

    fn batch(&self, orders: Vec<Order>) -> Batch {
        Batch::of(orders, &self.rows, &self.holds, self.clock.as_ref().map(Clock::now))
    }

    fn parcels(batch: Batch) -> Vec<Order> {
        batch.into_orders()
    }

    async fn exchange(&self, connection: &dyn Connection, slot: u16, batch: &Batch) -> Result<Value, RedisError> {
        let reply = connection.call(slot, Arc::new(batch.command(&self.script, true))).await;
        match reply {
            // A restart, a fail-over or SCRIPT FLUSH empties the script cache: normal operation.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.call(slot, Arc::new(batch.command(&self.script, false))).await
            }
            reply => reply,
        }
    }

    fn answer(&self, batch: Batch, reply: Value) -> Result<(), Failure> {
        let expired = batch.answer(&self.rows, &reply).map_err(Failure::answered)?;
        self.holds.expired(expired);
        Ok(())
    }

    fn trial(&self, _prefix: &str) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.script.text());
        load
    }
}

/// What is said of a hold whose call failed.
fn not_held(error: Error) -> Error {
    let message = "hold failed: Redis did not answer; the cost may stay held until the hold expires";
    Error::unavailable(message).with_source(error)
}

impl Parcel for Order {
    fn weight(&self) -> usize {
        self.steps() * self.weight
    }

    fn slot(&self) -> u16 {
        slot(self.any_key())
    }

    fn reply(&self) -> &oneshot::Sender<Answer> {
        &self.reply
    }

    fn answer(self, answer: Answer) {
        let may_be_held = matches!(self.steps, Steps::Hold(_, _, Some(_)));
        let answer = answer.map_err(|error| if may_be_held { not_held(error) } else { error });
        let _ = self.reply.send(answer);
    }

    fn is_abandoned(&self) -> bool {
        // What was settled is told to the server whoever waits for it.
        self.reply.is_closed() && !matches!(self.steps, Steps::Update(_))
    }
}
