use http::Request;

use crate::key::{ExtractKey, Extracted, KeyText};

/// The request's method, case-sensitive.
///
/// A client can invent methods. Use this extractor in a tuple such as `(ClientIp, Method)`, together with a limit on
/// the client:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::{KeyText, Method};
/// use tower_ratelimit::{Gcra, Limit, Memory, PeerIp, Quota, RateLimitLayer};
///
/// type Caller = (IpAddr, KeyText);
/// let limiter = Memory::new((
///     Limit::new("method", Gcra::new(Quota::per_second(10))),
///     Limit::new("client", Gcra::new(Quota::per_second(30))).keyed_by(|(client, _): &Caller| *client),
/// ));
/// let layer = RateLimitLayer::new((PeerIp::new(), Method), limiter);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method;

impl<B> ExtractKey<Request<B>> for Method {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        Extracted::Key(KeyText::from(request.method().as_str()))
    }
}
