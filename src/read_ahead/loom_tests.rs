//! loom models of a body that two threads poll: the reader ahead, and the service.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use loom::thread;

use super::bounds::Bounds;
use super::reader::Reader;
use crate::runtime::block_on;
use crate::sync::{Mutex, explore, report_orders};

/// A connection: the frames that have arrived, whether it has ended, and the waker of the task that reads.
#[derive(Clone, Default)]
struct Connection(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    frames: VecDeque<u8>,
    has_ended: bool,
    waker: Option<Waker>,
}

impl Connection {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut state);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Body for Connection {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frame) = state.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(vec![frame].into()))));
        }
        if state.has_ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The service receives all frames in order, and no wake-up is lost, whenever it begins to read.
#[test]
fn loom_service_reads_what_was_read_ahead() {
    for polls in 1..=2 {
        report_orders(explore(3, move || {
            let (connection, bounds) = (Connection::default(), Bounds::default());
            let (reader, mut body) = Reader::new(connection.clone(), &bounds, None);
            let server = thread::spawn(move || {
                connection.change(|state| state.frames.push_back(1));
                connection.change(|state| {
                    state.frames.push_back(2);
                    state.has_ended = true;
                });
            });
            let reading = thread::spawn(move || {
                for _ in 0..polls {
                    let _ = reader.poll(&mut Context::from_waker(Waker::noop()));
                }
            });
            let mut read = Vec::new();
            block_on(async {
                while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                    read.extend(frame.into_data().expect("data"));
                }
            });
            assert_eq!(read, [1, 2]);
            server.join().expect("no panic");
            reading.join().expect("no panic");
            drop(body);
            assert_eq!(bounds.used(), 0);
        }));
    }
}

/// A service that drops the body drops the connection, also while the reader reads.
#[test]
fn loom_dropped_body_leaves_nothing() {
    report_orders(explore(3, || {
        let (connection, bounds) = (Connection::default(), Bounds::default());
        connection.change(|state| state.frames.extend([1, 2]));
        let handle = Arc::downgrade(&connection.0);
        let (reader, body) = Reader::new(connection, &bounds, None);
        let reading = thread::spawn(move || {
            let _ = reader.poll(&mut Context::from_waker(Waker::noop()));
            reader
        });
        drop(body);
        assert_eq!((handle.strong_count(), bounds.used()), (0, 0));
        let _reader = reading.join().expect("no panic");
        assert_eq!(bounds.used(), 0);
    }));
}
