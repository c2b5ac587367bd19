//! The body types of axum and tonic: services take the same type with and without reading ahead.

use std::any::Any;

use super::bounds::Bounds;
use super::reader::BodyReader;

/// Starts to read the body of a request, if the type of its body is known.
pub(crate) type StartReading<Request> = fn(&mut Request, &Bounds) -> Option<BodyReader>;

/// Starts to read the body of an `http::Request` with the body of axum or tonic. Other requests are left alone.
pub(crate) fn start_reading<Request: 'static>(request: &mut Request, bounds: &Bounds) -> Option<BodyReader> {
    if bounds.max_bytes_per_request == 0 || bounds.max_bytes == 0 {
        return None;
    }
    // The rate limit layer is generic over requests, and Rust has no stable specialization.
    let request: &mut dyn Any = request;
    #[cfg(feature = "axum")]
    if let Some(request) = request.downcast_mut::<http::Request<axum::body::Body>>() {
        return BodyReader::of_request(request, bounds);
    }
    #[cfg(feature = "tonic")]
    if let Some(request) = request.downcast_mut::<http::Request<tonic::body::Body>>() {
        return BodyReader::of_request(request, bounds);
    }
    let _ = request;
    None
}

#[cfg(feature = "axum")]
mod axum_body {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::BoxError;
    use axum::body::Body;
    use bytes::Bytes;
    use http_body::{Frame, SizeHint};

    use crate::read_ahead::ReadAheadBody;

    impl From<ReadAheadBody<Body>> for Body {
        fn from(body: ReadAheadBody<Body>) -> Self {
            Self::new(Unwrapped(body))
        }
    }

    /// Removes axum's wrapper of errors, which `Body::new` adds again: an extractor unwraps a fixed number of them.
    struct Unwrapped(ReadAheadBody<Body>);

    impl http_body::Body for Unwrapped {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Pin::new(&mut self.0).poll_frame(cx).map_err(axum::Error::into_inner)
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_end_stream()
        }

        fn size_hint(&self) -> SizeHint {
            self.0.size_hint()
        }
    }
}

#[cfg(feature = "tonic")]
impl From<super::ReadAheadBody<tonic::body::Body>> for tonic::body::Body {
    fn from(body: super::ReadAheadBody<tonic::body::Body>) -> Self {
        Self::new(body)
    }
}
