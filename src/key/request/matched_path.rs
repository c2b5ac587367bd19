use http::Request;

use crate::key::{ExtractKey, Extracted, KeyText, NO_ROUTE};

/// The route that axum matched: `/users/{id}` for all users.
///
/// All requests without a route share the key `KeyText::from("no route")`: requests that the router answers with 404,
/// requests to a `nest_service`, and every request if the layer is outside of the router. Add the layer to the router
/// with `route_layer` or `layer`.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::key::MatchedPath;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// // Ten requests per second for each client and route.
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
        let route = request.extensions().get::<axum::extract::MatchedPath>();
        Extracted::Key(KeyText::from(route.map_or(NO_ROUTE, axum::extract::MatchedPath::as_str)))
    }
}
