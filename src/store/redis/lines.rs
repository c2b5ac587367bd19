use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pin_project::pin_project;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::call::{late, probe};
use super::lane::Lane;
use super::line::{Core, Line, drive};
use super::server::RedisServer;
use super::trade::{Answer, Parcel, Trade};
use crate::error::Error;
use crate::limiter::{Outcome, Reply};

/// The ways from a limiter to its server.
pub(super) struct Lines<T: Trade> {
    pub(super) core: Arc<Core<T>>,
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
    pub(super) fn new(core: Core<T>) -> Self {
        Self { core: Arc::new(core), known: Mutex::default(), recent: ArcSwapOption::empty() }
    }

    /// See [`Redis::check`](super::Redis::check).
    pub(super) async fn check(&self) -> Result<(), Error> {
        Handle::try_current().map_err(|_| no_runtime())?;
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
        timeout(RedisServer::CONNECT_WITHIN, checked).await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "Redis ({}) did not answer within {:?}",
                core.server.describe(),
                RedisServer::CONNECT_WITHIN
            )))
        })
    }

    /// Sends a decision on its way, unless it is known that there will be no answer.
    pub(super) fn decide(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> Result<RedisFuture, Error> {
        let answer = self.send(parcel)?;
        let Core { server, deadline, .. } = &*self.core;
        Ok(RedisFuture { answer, timer: sleep(*deadline), deadline: *deadline, server: server.clone() })
    }

    /// Another operation.
    pub(super) fn operate(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> Reply<()> {
        match self.send(parcel) {
            Err(error) => Reply::ready(Err(error)),
            Ok(answer) => {
                let core = Arc::clone(&self.core);
                Reply::pending(async move {
                    match timeout(core.deadline, answer).await {
                        Ok(Ok(answer)) => answer.map(|_| ()),
                        Ok(Err(_)) | Err(_) => Err(Error::unavailable(late(&core.server, core.deadline))),
                    }
                })
            }
        }
    }

    fn send(
        &self,
        parcel: impl FnOnce(oneshot::Sender<Answer>) -> Result<T::Parcel, Error>,
    ) -> Result<oneshot::Receiver<Answer>, Error> {
        if !self.core.server.is_cluster() {
            // What is not asked is not even written.
            self.check_breaker(&self.core.lanes.get(0))?;
        }
        let (reply, answer) = oneshot::channel();
        let mut parcel = parcel(reply)?;
        let mut index = 0;
        if self.core.server.is_cluster() {
            index = self.core.server.lane(parcel.slot());
            self.check_breaker(&self.core.lanes.get(index))?;
        }
        // A line that dies just now is replaced.
        loop {
            match self.line(index)?.push(parcel) {
                Ok(()) => return Ok(answer),
                Err(again) => {
                    self.recent.store(None);
                    parcel = again;
                }
            }
        }
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

    /// Whether a server is worth asking. Looks after it if it was not.
    fn check_breaker(&self, lane: &Arc<Lane>) -> Result<(), Error> {
        let result = lane.breaker.check();
        if result.is_err()
            && lane.breaker.take_probe()
            && let Ok(runtime) = Handle::try_current()
        {
            let (core, lane) = (Arc::clone(&self.core), Arc::clone(lane));
            runtime.spawn(async move {
                if let Ok(Ok(())) = timeout(RedisServer::CONNECT_WITHIN, probe(&core, &lane)).await {
                    core.succeeded(&lane);
                }
            });
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

fn no_runtime() -> Error {
    Error::config(
        "Redis is reached by tokio: use the limiter from within a tokio runtime, with its I/O and timer enabled",
    )
}

/// A decision on its way from Redis.
///
/// Dropping it before it was sent charges nothing; after that it may have been charged.
#[pin_project]
#[must_use = "a decision that is not awaited may not be made"]
pub struct RedisFuture {
    #[pin]
    answer: oneshot::Receiver<Answer>,
    #[pin]
    timer: Sleep,
    deadline: Duration,
    server: RedisServer,
}

impl Future for RedisFuture {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(answer) = this.answer.as_mut().poll(cx) {
            return Poll::Ready(answer.map_or_else(|_| Err(lost()), decided));
        }
        ready!(this.timer.poll(cx));
        // What is not sent yet never will be, however long this future is kept: who was told that it failed is not charged.
        this.answer.close();
        // It may have come just now.
        let late = || Err(Error::unavailable(late(this.server, *this.deadline)));
        Poll::Ready(this.answer.try_recv().map_or_else(|_| late(), decided))
    }
}

fn decided(answer: Answer) -> Result<Outcome, Error> {
    answer.and_then(|outcome| outcome.ok_or_else(lost))
}

fn lost() -> Error {
    Error::unavailable("the call to Redis was lost")
}

impl std::fmt::Debug for RedisFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFuture").finish_non_exhaustive()
    }
}
