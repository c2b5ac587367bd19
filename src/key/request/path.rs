use http::Request;

use crate::key::KeyText;
use crate::key::{ExtractKey, Extracted};

/// The path of the request's URI, without its query.
///
/// It counts as the client has written it. One resource may have many paths: with and without a slash at its end, with
/// characters encoded, with an identifier in it. Who knows more of them than you has more limits than you think: for
/// routes use `MatchedPath`, and join what is left with an address by a tuple.
///
/// ```
/// use tower_ratelimit::key::{ExtractKey, Extracted, KeyText, Path};
///
/// let request = http::Request::get("/login?next=/").body(()).unwrap();
/// assert_eq!(Path.extract(&request), Extracted::Key(KeyText::from("/login")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path;

impl<B> ExtractKey<Request<B>> for Path {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        Extracted::Key(KeyText::new(request.uri().path().as_bytes()))
    }
}
