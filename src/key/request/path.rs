use http::Request;

use crate::key::{ExtractKey, Extracted, KeyText};

/// The path that the client sent, without its query.
///
/// In axum a nested router strips its prefix from the URI, so this is the path of `OriginalUri` (feature `axum`): the
/// URI that the outermost router received. It does not change if a middleware between two routers rewrites the URI. To
/// count by a rewritten path, use a closure that returns `request.uri().path()`, or rewrite outside of all routers.
///
/// The key is the path as the client wrote it. One resource may have many paths: with and without a trailing slash,
/// with encoded characters, with identifiers. A client that varies the path gets a separate limit for each variant.
/// Prefer `MatchedPath`, or combine the path with an address in a tuple and limit the address as well.
///
/// ```
/// use tower_ratelimit::ExtractKey;
/// use tower_ratelimit::key::{Extracted, KeyText, Path};
///
/// let request = http::Request::get("/login?next=/").body(()).unwrap();
/// assert_eq!(Path.extract(&request), Extracted::Key(KeyText::from("/login")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path;

impl<B> ExtractKey<Request<B>> for Path {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        Extracted::Key(KeyText::new(path_of(request).as_bytes()))
    }
}

/// Returns the path that the client sent, which axum's routers keep while nested routers strip their prefixes.
#[cfg(feature = "axum")]
pub(crate) fn path_of<B>(request: &Request<B>) -> &str {
    use axum::extract::OriginalUri;

    let original = request.extensions().get::<OriginalUri>();
    original.map_or(request.uri(), |OriginalUri(uri)| uri).path()
}

#[cfg(not(feature = "axum"))]
pub(crate) fn path_of<B>(request: &Request<B>) -> &str {
    request.uri().path()
}
