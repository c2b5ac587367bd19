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
impl From<super::ReadAheadBody<axum::body::Body>> for axum::body::Body {
    /// Removes axum's wrapper of errors, which `Body::new` adds again: an extractor unwraps a fixed number of them.
    fn from(body: super::ReadAheadBody<axum::body::Body>) -> Self {
        Self::new(http_body_util::BodyExt::map_err(body, axum::Error::into_inner))
    }
}

#[cfg(feature = "tonic")]
impl From<super::ReadAheadBody<tonic::body::Body>> for tonic::body::Body {
    fn from(body: super::ReadAheadBody<tonic::body::Body>) -> Self {
        Self::new(body)
    }
}
