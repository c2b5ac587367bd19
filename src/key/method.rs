use http::Request;

use super::seam::{ExtractKey, Extracted};
use super::text::KeyText;

/// The request's method, to the letter.
///
/// A client may make methods up. Use it in a tuple, as `(ClientIp, Method)`, with a limit on the client in all beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method;

impl<B> ExtractKey<Request<B>> for Method {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        Extracted::Key(KeyText::from(request.method().as_str()))
    }
}
