//! Waiting, and doing things aside, if there is something to do it with.

pub(crate) use self::with::{Instant, Sleep, sleep, spawn};

#[cfg(feature = "timer")]
mod with {
    use std::future::Future;
    use std::panic::catch_unwind;
    use std::time::Duration;

    pub(crate) use tokio::time::{Instant, Sleep};

    /// `None` outside of a tokio runtime, and in a runtime that was built without a timer.
    pub(crate) fn sleep(span: Duration) -> Option<Sleep> {
        tokio::runtime::Handle::try_current().ok()?;
        // tokio has no other way to find out whether a runtime has a timer.
        catch_unwind(|| tokio::time::sleep(span)).ok()
    }

    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}

#[cfg(not(feature = "timer"))]
mod with {
    use std::convert::Infallible;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    pub(crate) use std::time::Instant;

    /// There is none.
    pub(crate) struct Sleep(Infallible);

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
            match self.0 {}
        }
    }

    pub(crate) fn sleep(_span: Duration) -> Option<Sleep> {
        None
    }

    pub(crate) fn spawn(_future: impl Future<Output = ()> + Send + 'static) {}
}
