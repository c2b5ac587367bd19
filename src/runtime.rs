//! Sleeping and spawning on tokio, with stand-ins for builds without the feature `timer` and for loom's models.

#[cfg(all(loom, test, not(feature = "timer")))]
pub(crate) use self::loom_tests::{Instant, Sleep, block_on, has_timer, shut_down, sleep, spawn};
#[cfg(not(any(all(loom, test), feature = "timer")))]
pub(crate) use self::no_runtime::{Instant, Sleep, has_timer, sleep, spawn};
#[cfg(feature = "timer")]
pub(crate) use self::tokio_runtime::{Instant, Sleep, has_timer, sleep, spawn};

#[cfg(feature = "timer")]
mod tokio_runtime {
    use std::future::Future;
    use std::panic::catch_unwind;
    use std::time::Duration;

    pub(crate) use tokio::time::{Instant, Sleep};

    /// Returns `None` outside of a tokio runtime, and in a runtime without a timer.
    pub(crate) fn sleep(span: Duration) -> Option<Sleep> {
        tokio::runtime::Handle::try_current().ok()?;
        // `sleep` panics in a runtime without a timer, and tokio has no method that tests for one.
        catch_unwind(|| tokio::time::sleep(span)).ok()
    }

    /// Returns whether the caller runs in a tokio runtime with a timer.
    pub(crate) fn has_timer() -> bool {
        sleep(Duration::ZERO).is_some()
    }

    /// Runs the future in the current runtime; drops it outside of a runtime.
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}

#[cfg(not(feature = "timer"))]
mod no_timer {
    use std::convert::Infallible;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    /// A sleep that cannot be constructed.
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
}

#[cfg(not(any(all(loom, test), feature = "timer")))]
mod no_runtime {
    use std::future::Future;
    pub(crate) use std::time::Instant;

    pub(crate) use super::no_timer::{Sleep, sleep};

    pub(crate) fn has_timer() -> bool {
        false
    }

    pub(crate) fn spawn(_future: impl Future<Output = ()> + Send + 'static) {}
}

#[cfg(all(loom, test, not(feature = "timer")))]
mod loom_tests;
