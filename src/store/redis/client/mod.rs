//! The client: batches operations into calls of the script.

pub(crate) mod batch;
pub(crate) mod config;
pub(crate) mod dispatch;
pub(crate) mod operation;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod trade;
pub(crate) mod worker;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::{Either, select};
use pin_project::pin_project;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::limiter::{BoxFuture, LimiterFuture, Outcome};
use crate::runtime::{Sleep, sleep};
use crate::store::redis::client::config::Core;
use crate::store::redis::client::dispatch::late;
use crate::store::redis::client::queue::Line;
use crate::store::redis::client::trade::{Answer, Done, Parcel, Trade};
use crate::store::redis::client::worker::drive;
use crate::store::redis::health::node::Lane;
use crate::store::redis::health::probe::{self, probe};
use crate::store::redis::server::{RedisServer, no_runtime};

/// The ways from a limiter to its server.
pub(crate) struct Lines<T: Trade> {
    pub(crate) core: Arc<Core<T>>,
    /// One for each runtime and lane: what a runtime began ends with it.
    known: Mutex<Vec<Known<T>>>,
    /// Where there is one lane, the line that was used last.
    recent: ArcSwapOption<Known<T>>,
}

struct Known<T: Trade> {
    runtime: Id,
    lane: usize,
    line: Arc<Line<T::Parcel>>,
}

impl<T: Trade> Lines<T> {
    /// How many lines a parcel is pushed to: the known one may have died. If a new one has died as well, its runtime is shutting
    /// down, and drops each task that is spawned.
    const TRIES: usize = 2;

    pub(crate) fn new(core: Core<T>) -> Self {
        Self { core: Arc::new(core), known: Mutex::default(), recent: ArcSwapOption::empty() }
    }

    /// See [`Redis::health_check`](super::Redis::health_check).
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let timer = sleep(RedisServer::CONNECT_WITHIN).ok_or_else(no_runtime)?;
        let core = &self.core;
        let checked = async {
            core.server.prepare().await.map_err(|failure| failure.error)?;
            for index in 0..core.server.lanes() {
                let lane = core.lanes.get(index);
                probe(core, &lane).await?;
                core.succeeded(&lane);
            }
            Ok(())
        };
        match select(pin!(checked), pin!(timer)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::unavailable(format!(
                "Redis ({}) did not answer within {:?}",
                core.server.describe(),
                RedisServer::CONNECT_WITHIN
            ))),
        }
    }

    /// Sends a decision on its way, unless it is known that there will be no answer.
    pub(crate) fn decide(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> Result<RedisFuture, Error> {
        self.send(parcel).map(|sent| RedisFuture { kind: Kind::Decision(sent) })
    }

    /// Another operation.
    pub(crate) fn operate(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> LimiterFuture<()> {
        match self.send(parcel) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(sent) => LimiterFuture::pending(async move { sent.await.map(|_| ()) }),
        }
    }

    fn send(&self, parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>) -> Result<Sent, Error> {
        let Core { server, deadline, .. } = &*self.core;
        let timer = sleep(*deadline).ok_or_else(no_runtime)?;
        let answer = self.push(parcel)?;
        Ok(Sent { answer, timer, deadline: *deadline, server: server.clone() })
    }

    /// Sends a parcel on its way, unless it is known that there will be no answer. Nothing waits for the answer.
    pub(crate) fn push(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> Result<oneshot::Receiver<Answer>, Error> {
        let server = &self.core.server;
        if !server.is_cluster() {
            // What is not asked is not even written.
            self.check_breaker(&self.core.lanes.get(0))?;
        }
        let (reply, answer) = oneshot::channel();
        let mut parcel = parcel(reply)?;
        let mut index = 0;
        if server.is_cluster() {
            index = server.lane(parcel.slot());
            self.check_breaker(&self.core.lanes.get(index))?;
        }
        for _ in 0..Self::TRIES {
            match self.line(index)?.push(parcel) {
                Ok(()) => return Ok(answer),
                Err(again) => {
                    self.recent.store(None);
                    parcel = again;
                }
            }
        }
        Err(Error::unavailable(
            "the call to Redis was not sent: the runtime is shutting down; end all requests before their tokio runtime",
        ))
    }

    /// The line of the runtime that this is called from.
    fn line(&self, lane: usize) -> Result<Arc<Line<T::Parcel>>, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let id = runtime.id();
        if let Some(recent) = self.recent.load().as_deref()
            && recent.runtime == id
            && recent.lane == lane
        {
            return Ok(Arc::clone(&recent.line));
        }
        let mut lines = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|known| !known.line.is_dead());
        let line = if let Some(known) = lines.iter().find(|known| known.runtime == id && known.lane == lane) {
            Arc::clone(&known.line)
        } else {
            let line = Arc::new(Line::new());
            runtime.spawn(drive(Arc::clone(&self.core), self.core.lanes.get(lane), Arc::clone(&line)));
            lines.push(Known { runtime: id, lane, line: Arc::clone(&line) });
            line
        };
        if !self.core.server.is_cluster() {
            self.recent.store(Some(Arc::new(Known { runtime: id, lane, line: Arc::clone(&line) })));
        }
        Ok(line)
    }

    /// Whether a server is worth asking. If not, it is probed.
    fn check_breaker(&self, lane: &Arc<Lane>) -> Result<(), Error> {
        let result = lane.breaker.check();
        if result.is_err() {
            // The runtime of the task that probed it may be gone.
            probe::start(&self.core, lane);
        }
        result
    }
}

impl<T: Trade> Drop for Lines<T> {
    fn drop(&mut self) {
        for known in self.known.get_mut().unwrap_or_else(PoisonError::into_inner) {
            known.line.close();
        }
    }
}

/// A parcel that was pushed, on its way back.
#[pin_project]
struct Sent {
    #[pin]
    answer: oneshot::Receiver<Answer>,
    #[pin]
    timer: Sleep,
    deadline: Duration,
    server: RedisServer,
}

impl Future for Sent {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut this = self.project();
        if let Poll::Ready(answer) = this.answer.as_mut().poll(cx) {
            return Poll::Ready(answer.unwrap_or_else(|_| Err(lost())));
        }
        ready!(this.timer.poll(cx));
        // What is not sent yet never will be, however long this future is kept: who was told that it failed is not charged.
        this.answer.close();
        // It may have come just now.
        Poll::Ready(
            this.answer.try_recv().unwrap_or_else(|_| Err(Error::unavailable(late(this.server, *this.deadline)))),
        )
    }
}

/// A decision on its way from Redis.
///
/// Dropping it before it was sent charges nothing; after that it may have been charged.
#[pin_project]
#[must_use = "a decision that is not awaited may not be made"]
pub struct RedisFuture {
    #[pin]
    kind: Kind,
}

#[pin_project(project = Projected)]
#[allow(clippy::large_enum_variant, reason = "a decision that holds nothing must not be boxed")]
enum Kind {
    Decision(#[pin] Sent),
    Hold(BoxFuture<Result<Outcome, Error>>),
}

impl RedisFuture {
    pub(crate) fn hold(future: impl Future<Output = Result<Outcome, Error>> + Send + 'static) -> Self {
        Self { kind: Kind::Hold(Box::pin(future)) }
    }
}

impl Future for RedisFuture {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            Projected::Hold(future) => future.as_mut().poll(cx),
            Projected::Decision(sent) => Poll::Ready(match ready!(sent.poll(cx)) {
                Ok(Done::Decided(decision, _)) => Ok(decision.into()),
                Ok(Done::SessionExpired | Done::Operated) => Err(lost()),
                Err(error) => Err(error),
            }),
        }
    }
}

pub(crate) fn lost() -> Error {
    Error::unavailable("the call to Redis was lost: its task ended; what was asked may have been charged")
}

impl std::fmt::Debug for RedisFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFuture").finish_non_exhaustive()
    }
}
