use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;
use tower_service::Service;

use super::layer::GateClosed;
use super::signal::ReadGateSignal;
use super::state::{Pass, Waiter};
use crate::runtime::{Instant, Sleep, sleep};

/// The future of [`Gate`](super::Gate).
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct GateFuture<S: Service<Request>, Request, R> {
    #[pin]
    stage: Stage<S, Request>,
    reader: R,
}

#[pin_project(project = StageProjection, project_replace = StageOwned)]
enum Stage<S: Service<Request>, Request> {
    Waiting {
        inner: S,
        request: Request,
        /// `None` after the start: the request waits for the inner service.
        waiter: Option<Waiter>,
        pass: Option<Pass>,
        deadline: Option<Instant>,
        #[pin]
        timer: Option<Sleep>,
    },
    Sent {
        #[pin]
        response: S::Future,
        pass: Option<Pass>,
    },
    Done,
}

impl<S: Service<Request>, Request, R> GateFuture<S, Request, R> {
    pub(super) fn start(response: S::Future, pass: Pass, reader: R) -> Self {
        Self { stage: Stage::Sent { response, pass: Some(pass) }, reader }
    }

    pub(super) fn wait(inner: S, request: Request, waiter: Waiter, max_wait: Duration, reader: R) -> Self {
        let deadline = Instant::now().checked_add(max_wait);
        let stage = Stage::Waiting { inner, request, waiter: Some(waiter), pass: None, deadline, timer: None };
        Self { stage, reader }
    }
}

/// Waits for a start. Returns the pass, or an error at the deadline.
fn poll_start(
    waiter: &Waiter,
    deadline: Option<Instant>,
    mut timer: Pin<&mut Option<Sleep>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Pass, GateClosed>> {
    loop {
        let now = Instant::now();
        let closed_for = waiter.closed_for(now);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        if left.is_some_and(|left| closed_for > left) {
            return Poll::Ready(Err(GateClosed::new(closed_for)));
        }
        let not_before = match waiter.start(now, cx.waker()) {
            Ok(pass) => return Poll::Ready(Ok(pass)),
            Err(not_before) => not_before,
        };
        if left.is_some_and(|left| left.is_zero()) {
            return Poll::Ready(Err(GateClosed::new(closed_for)));
        }
        let span = not_before.saturating_duration_since(now);
        timer.set(sleep(left.map_or(span, |left| left.min(span))));
        match timer.as_mut().as_pin_mut() {
            Some(timer) => ready!(timer.poll(cx)),
            // Without a runtime there is no timer, so the request cannot wait.
            None => return Poll::Ready(Err(GateClosed::new(closed_for))),
        }
    }
}

impl<S, Request, R> Future for GateFuture<S, Request, R>
where
    S: Service<Request, Error: From<GateClosed>>,
    R: ReadGateSignal<S::Response>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Waiting { inner, waiter, pass, deadline, timer, .. } => {
                    if let Some(waiting) = waiter {
                        match ready!(poll_start(waiting, *deadline, timer, cx)) {
                            Ok(started) => (*pass, *waiter) = (Some(started), None),
                            Err(closed) => {
                                this.stage.set(Stage::Done);
                                return Poll::Ready(Err(closed.into()));
                            }
                        }
                    }
                    if let Err(error) = ready!(inner.poll_ready(cx)) {
                        this.stage.set(Stage::Done);
                        return Poll::Ready(Err(error));
                    }
                    if let StageOwned::Waiting { mut inner, request, pass, .. } =
                        this.stage.as_mut().project_replace(Stage::Done)
                    {
                        this.stage.set(Stage::Sent { response: inner.call(request), pass });
                    }
                }
                StageProjection::Sent { response, pass } => {
                    let result = ready!(response.poll(cx));
                    if let (Ok(response), Some(pass)) = (&result, pass.take()) {
                        pass.finish(this.reader.read(response));
                    }
                    this.stage.set(Stage::Done);
                    return Poll::Ready(result);
                }
                // As other futures do: a completed future is not polled again.
                StageProjection::Done => return Poll::Pending,
            }
        }
    }
}

impl_debug!([S: Service<Request>, Request, R] GateFuture<S, Request, R> {});
