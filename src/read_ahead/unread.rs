use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::bounds::{Bounds, MemoryUse};

/// How reading ahead ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The body has ended, a bound is reached, or the service reads the body itself.
    Stopped,
    /// The body has failed.
    Failed,
}

/// What a body says about its remainder.
#[derive(Clone, Debug)]
pub(super) struct Remainder {
    pub(super) is_end_stream: bool,
    pub(super) size_hint: SizeHint,
}

impl Remainder {
    pub(super) fn of(body: &impl Body) -> Self {
        Self { is_end_stream: body.is_end_stream(), size_hint: body.size_hint() }
    }
}

/// A result of the body's `poll_frame` that the service has not received yet.
struct Buffered<E> {
    frame: Option<Result<Frame<Bytes>, E>>,
    /// What the body said after the frame.
    after: Remainder,
    /// The memory of this value.
    bytes: usize,
}

/// What a frame counts beside its data: its entry, twice because a `VecDeque` grows by doubling, and the bookkeeping of the
/// allocator. The documentation states this number.
const OVERHEAD: usize = 320;

const _: () = assert!(2 * size_of::<Buffered<Box<dyn std::error::Error>>>() + 16 <= OVERHEAD);

/// The part of a body that the service has not read: buffered frames, and the rest.
pub(super) struct Unread<B: Body<Data = Bytes>> {
    buffered: VecDeque<Buffered<B::Error>>,
    memory: MemoryUse,
    /// What the body said before the first buffered frame.
    before: Remainder,
    pub(super) rest: Pin<Box<B>>,
    /// The service has dropped the body, and the layer may discard the rest.
    pub(super) is_dropped: bool,
}

impl<B: Body<Data = Bytes>> Unread<B> {
    pub(super) fn new(body: B, bounds: &Bounds) -> Self {
        let rest = Box::pin(body);
        let before = Remainder::of(&*rest);
        Self { buffered: VecDeque::new(), memory: MemoryUse::new(bounds), before, rest, is_dropped: false }
    }

    /// Reads the body into the buffer until it has no frame ready, or reading ends.
    pub(super) fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<ReadEnd> {
        loop {
            if self.memory.is_full() || self.rest.is_end_stream() {
                return Poll::Ready(ReadEnd::Stopped);
            }
            let frame = ready!(self.rest.as_mut().poll_frame(cx));
            let end = match &frame {
                Some(Ok(_)) => None,
                Some(Err(_)) => Some(ReadEnd::Failed),
                None => Some(ReadEnd::Stopped),
            };
            let (frame, bytes) = match frame {
                Some(Ok(frame)) => {
                    let (frame, bytes) = compact(frame);
                    (Some(Ok(frame)), bytes)
                }
                ended => (ended, 0),
            };
            let bytes = bytes + OVERHEAD;
            self.memory.add(bytes);
            self.buffered.push_back(Buffered { frame, after: Remainder::of(&*self.rest), bytes });
            if let Some(end) = end {
                return Poll::Ready(end);
            }
        }
    }

    /// Returns the buffered results first, and then the body's results.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(Buffered { frame, after, bytes }) = self.buffered.pop_front() else {
            return self.rest.as_mut().poll_frame(cx);
        };
        self.before = after;
        self.memory.subtract(bytes);
        if self.buffered.is_empty() {
            // Frees the memory, which no longer counts.
            self.buffered = VecDeque::new();
        }
        Poll::Ready(frame)
    }

    pub(super) fn remainder(&self) -> Remainder {
        if self.buffered.is_empty() { Remainder::of(&*self.rest) } else { self.before.clone() }
    }
}

/// Returns the frame in memory of its own, and the size of its content.
///
/// The data of a frame is a part of the server's read buffer, which has at least 8 KiB in hyper. It is copied, because
/// a buffered frame of one byte would otherwise keep the whole read buffer.
fn compact(frame: Frame<Bytes>) -> (Frame<Bytes>, usize) {
    match frame.into_data() {
        Ok(data) => (Frame::data(Bytes::copy_from_slice(&data)), data.len()),
        Err(frame) => {
            let fields = frame.trailers_ref().into_iter().flatten();
            // A field takes up to three words beside its name and value.
            let bytes = fields.map(|(name, value)| name.as_str().len() + value.len() + 128).sum();
            (frame, bytes)
        }
    }
}
