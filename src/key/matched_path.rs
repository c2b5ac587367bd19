use http::Request;

use super::missing::Missing;
use super::seam::{ExtractKey, Extracted};
use super::text::KeyText;

/// The route that axum has found for the request: `/users/{id}` for all users.
///
/// Put the layer on the router by `route_layer` or `layer`. Where there is no route (outside of the router, or for what
/// it answers with 404) the key is missing by the server's fault. To count all that together, say
/// `MatchedPath.or(Global)`.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::key::MatchedPath;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// // Each client, ten a second for each route.
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let app: Router = Router::new()
///     .route("/users/{id}", get(async || "hello"))
///     .route_layer(RateLimitLayer::new((PeerIp::new(), MatchedPath), limiter));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedPath;

impl<B> ExtractKey<Request<B>> for MatchedPath {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        match request.extensions().get::<axum::extract::MatchedPath>() {
            Some(route) => Extracted::Key(KeyText::from(route.as_str())),
            None => Extracted::Missing(Missing::from_server(
                "the server is put together wrongly: the rate limiter counts by the route, and the request has none \
                 (put the layer on the router by route_layer)",
            )),
        }
    }
}
