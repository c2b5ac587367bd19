//! The body types of axum and tonic: the services behind the layer take the same type as without it.

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
