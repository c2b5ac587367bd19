//! Reads the bodies of rejected uploads, and discards them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::CONNECTION;
use http_body::Body;

use crate::runtime::{Instant, sleep, spawn};
use crate::sync::{Mutex, MutexGuard};

/// How many bodies are read at a time.
const MAX_OPEN: usize = 100;

/// For how long a body is read.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The bounds on bodies that are discarded, and what is in use. Clones share the latter.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    max_bytes_per_request: u64,
    max_bytes_per_second: u64,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug, Default)]
struct Used {
    open: usize,
    /// The millionth parts of bytes that count at a time: they leave at the rate of the layer.
    micro_bytes: u128,
    at: Option<Instant>,
}

impl Drain {
    #[cfg(feature = "timer")]
    pub(super) fn new(max_bytes_per_request: u64, max_bytes_per_second: u64) -> Self {
        Self { max_bytes_per_request, max_bytes_per_second, used: Arc::default() }
    }

    /// Returns whether the server closes the connection behind the response, because it has not read the body.
    pub(super) fn applies_to<T>(response: &Response<T>) -> bool {
        response.headers().get(CONNECTION).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"))
    }

    /// Reads the rest of a body in a task of its own, if the bounds allow it. Otherwise drops the body.
    pub(super) fn discard<B>(&self, mut body: Pin<Box<B>>)
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let hint = body.size_hint();
        let mut left = hint.exact().unwrap_or(self.max_bytes_per_request.max(hint.lower()));
        let (Some(open), Some(end)) = (self.open(left), sleep(MAX_TIME)) else { return };
        let mut end = Box::pin(end);
        let read: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(poll_fn(move |cx| {
            let _open = &open;
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            while let Poll::Ready(frame) = body.as_mut().poll_frame(cx) {
                let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                let Some(less) = left.checked_sub(bytes) else { return Poll::Ready(()) };
                left = less;
            }
            Poll::Pending
        }));
        // Boxed: the compiler would generate the code of a task for each type of a body.
        spawn(read);
    }

    /// Counts a body of so many bytes, if the bounds allow it.
    fn open(&self, bytes: u64) -> Option<Open> {
        const MICRO: u128 = 1_000_000;
        if bytes > self.max_bytes_per_request {
            return None;
        }
        let (mut used, now) = (self.lock(), Instant::now());
        let elapsed = used.at.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let left = elapsed.as_micros().saturating_mul(self.max_bytes_per_second.into());
        used.micro_bytes = used.micro_bytes.saturating_sub(left);
        let sum = used.micro_bytes + u128::from(bytes) * MICRO;
        // Also the longest body is read if there is no other.
        let at_once = self.max_bytes_per_second.max(self.max_bytes_per_request);
        if used.open >= MAX_OPEN || sum > u128::from(at_once) * MICRO {
            return None;
        }
        (used.open, used.micro_bytes) = (used.open + 1, sum);
        Some(Open(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that is being read.
struct Open(Drain);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
    }
}
