use http::Request;

use crate::key::KeyText;
use crate::key::{ExtractKey, Extracted};

/// The path of the request's URI, without its query.
///
/// The key is the path as the client wrote it. One resource may have many paths: with and without a trailing slash,
/// with encoded characters, with identifiers. A client that varies the path gets a separate limit for each variant.
/// Prefer `MatchedPath`, or combine the path with an address in a tuple and limit the address as well.
///
/// ```
/// use tower_ratelimit::key::{ExtractKey, Extracted, KeyText, Path};
///
/// let request = http::Request::get("/login?next=/").body(()).unwrap();
/// assert_eq!(Path.extract(&request), Extracted::Key(KeyText::from("/login")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path;

impl Path {
    /// Creates an extractor of the path: the same as the value `Path`.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<B> ExtractKey<Request<B>> for Path {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        Extracted::Key(KeyText::new(request.uri().path().as_bytes()))
    }
}
