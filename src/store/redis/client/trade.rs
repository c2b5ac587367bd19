//! What a line carries: what differs between a script's calls and the commands of a module.

use std::future::Future;

use redis::{Cmd, RedisError};
use tokio::sync::oneshot;

use crate::decision::Decision;
use crate::error::Error;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::holds::session::Grant;

/// What comes back.
pub(crate) type Answer = Result<Done, Error>;

/// What was done.
pub(crate) enum Done {
    /// A decision, and what is held for it.
    Decided(Decision, Option<Grant>),
    /// A session had expired: nothing is held. Another try begins a new one.
    SessionExpired,
    /// Another operation.
    Operated,
}

/// Something to be done in Redis, and who waits for it.
pub(crate) trait Parcel: Send + 'static {
    /// How much of a call it takes up: 1 for a decision of one bucket.
    fn weight(&self) -> usize;

    /// The slot of its keys, were they in a cluster.
    fn slot(&self) -> u16;

    fn reply(&self) -> &oneshot::Sender<Answer>;

    /// Ends it.
    fn answer(self, answer: Answer);

    /// Whether nobody waits for it any more: it must not be charged then.
    fn is_abandoned(&self) -> bool {
        self.reply().is_closed()
    }
}

/// How parcels are sent, and what the replies mean.
pub(crate) trait Trade: Send + Sync + 'static {
    type Parcel: Parcel;
    /// Parcels that travel together.
    type Batch: Send + Sync;
    type Reply: Send;

    fn batch(&self, parcels: Vec<Self::Parcel>) -> Self::Batch;

    /// The parcels again, after a reply that said that nothing was done.
    fn parcels(batch: Self::Batch) -> Vec<Self::Parcel>;

    /// Sends a batch, once; a second time only if it is certain that the first one did nothing.
    fn exchange(
        &self,
        connection: &dyn Connection,
        slot: u16,
        batch: &Self::Batch,
    ) -> impl Future<Output = Result<Self::Reply, RedisError>> + Send;

    /// Tells everybody what came of it. The failure is for the breaker, everybody is told.
    fn answer(&self, batch: Self::Batch, reply: Self::Reply) -> Result<(), Failure>;

    /// What a failure of the whole call means.
    fn explain(&self, error: RedisError) -> Failure {
        Failure::of(error)
    }

    /// What a probe asks, besides whether Redis takes writes; keys begin with `prefix`.
    fn trial(&self, prefix: &str) -> Cmd;
}
