//! What goes one way: to one server, or to one node of a cluster. One that is gone holds up no other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use crate::store::redis::connect::connection::Connection;
use crate::store::redis::health::circuit_breaker::Breaker;

pub(crate) struct Lane {
    pub(crate) index: usize,
    pub(crate) breaker: Breaker,
    spare: Mutex<Option<Spare>>,
}

/// A connection that a probe has made and tried.
struct Spare {
    connection: Arc<dyn Connection>,
    /// The runtime of the task that reads from the connection.
    runtime: Id,
    made_at: Instant,
}

impl Lane {
    /// The age at which a spare is dropped. A connection through a proxy or a NAT may be dead without an end of file.
    const SPARE_AGE: Duration = Duration::from_secs(30);

    fn new(index: usize) -> Self {
        Self { index, breaker: Breaker::new(), spare: Mutex::default() }
    }

    pub(crate) fn keep_spare(&self, connection: Box<dyn Connection>) {
        let (connection, runtime) = (Arc::from(connection), Handle::current().id());
        *self.spare() = Some(Spare { connection, runtime, made_at: Instant::now() });
    }

    /// The spare, if it is young enough and belongs to the runtime that this is called from.
    pub(crate) fn take_spare(&self) -> Option<Arc<dyn Connection>> {
        let mut spare = self.spare();
        spare.take_if(|spare| spare.made_at.elapsed() >= Self::SPARE_AGE);
        spare.take_if(|spare| spare.runtime == Handle::current().id()).map(|spare| spare.connection)
    }

    fn spare(&self) -> MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All lanes of a limiter: a single server has one.
pub(crate) struct Lanes {
    first: Arc<Lane>,
    others: RwLock<Vec<Arc<Lane>>>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self { first: Arc::new(Lane::new(0)), others: RwLock::default() }
    }

    pub(crate) fn get(&self, index: usize) -> Arc<Lane> {
        let Some(other) = index.checked_sub(1) else { return Arc::clone(&self.first) };
        if let Some(lane) = self.others.read().unwrap_or_else(PoisonError::into_inner).get(other) {
            return Arc::clone(lane);
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        while others.len() <= other {
            let lane = Arc::new(Lane::new(others.len() + 1));
            others.push(lane);
        }
        Arc::clone(&others[other])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redis::{Cmd, Pipeline, RedisError, Value};
    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::{Connection, Lane};
    use crate::limiter::BoxFuture;

    struct Dummy;

    impl Connection for Dummy {
        fn call(&self, _slot: u16, _command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
            Box::pin(std::future::ready(Ok(Value::Nil)))
        }

        fn pipe(&self, _commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>> {
            Box::pin(std::future::ready(Ok(Vec::new())))
        }

        fn is_open(&self) -> BoxFuture<bool> {
            Box::pin(std::future::ready(true))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn spares_age() {
        let lane = Lane::new(0);
        lane.keep_spare(Box::new(Dummy));
        advance(Lane::SPARE_AGE / 2).await;
        assert!(lane.take_spare().is_some() && lane.take_spare().is_none());
        lane.keep_spare(Box::new(Dummy));
        advance(Lane::SPARE_AGE).await;
        assert!(lane.take_spare().is_none());
    }

    #[test]
    fn spares_stay_with_their_runtime() {
        let (lane, runtime) = (Lane::new(0), || Builder::new_current_thread().build().expect("a runtime"));
        let owner = runtime();
        owner.block_on(async { lane.keep_spare(Box::new(Dummy)) });
        assert!(runtime().block_on(async { lane.take_spare().is_none() }));
        assert!(owner.block_on(async { lane.take_spare().is_some() }));
    }
}
