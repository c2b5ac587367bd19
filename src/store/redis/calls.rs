use std::sync::Arc;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::connection::Connection;
use super::failure::Failure;
use super::order::Order;
use super::row::RowInfo;
use super::script::Script;
use super::slot::slot;
use super::trade::{Answer, Parcel, Trade};
use crate::clock::Clock;

/// Orders, as calls of a script.
pub(super) struct Calls {
    pub(super) rows: Vec<RowInfo>,
    pub(super) script: Script,
    /// For tests: decides by this clock instead of the server's.
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl Trade for Calls {
    type Parcel = Order;
    type Batch = Batch;
    type Reply = Value;

    fn batch(&self, orders: Vec<Order>) -> Batch {
        Batch::of(orders, &self.rows, self.clock.as_ref().map(Clock::now))
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
        batch.answer(&self.rows, &reply).map_err(Failure::answered)
    }

    fn trial(&self, _prefix: &str) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(self.script.text());
        load
    }
}

impl Parcel for Order {
    fn steps(&self) -> usize {
        self.shapes().len() * self.key_ends.len()
    }

    fn slot(&self) -> u16 {
        slot(self.key(0))
    }

    fn reply(&self) -> &oneshot::Sender<Answer> {
        &self.reply
    }

    fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}
