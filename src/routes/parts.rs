use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use http::Request;

use super::key::{RequestKey, Rule, text_of};
use super::part::{Part, Source};
#[cfg(feature = "axum")]
use crate::key::NO_ROUTE;
use crate::key::{EncodeKey, ExtractKey, Extracted, Host, KeyText, MissingKey, Path, PeerIp, Pepper};

/// How the parts of a request are read: the address, the user, and the secrets.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::key::TrustedProxies;
/// use tower_ratelimit::routes::RequestParts;
/// use tower_ratelimit::{ClientIp, PeerIp};
///
/// /// The user that a login layer inserts.
/// #[derive(Clone)]
/// struct User(u64);
///
/// let parts = RequestParts::new(ClientIp::x_forwarded_for(TrustedProxies::hops(1)))
///     .user(|request: &Request<String>| request.extensions().get::<User>().map(|user| user.0));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RequestParts<A = PeerIp, U = NoUser> {
    pub(super) address: A,
    pub(super) user: U,
    pub(super) has_user: bool,
    /// A random one unless the application has set one.
    pub(super) pepper: Pepper,
    pub(super) is_shared: bool,
}

impl<A> RequestParts<A> {
    /// Reads the address with `address`: [`PeerIp`], [`ClientIp`](crate::ClientIp), or another extractor.
    pub fn new(address: A) -> Self {
        Self { address, user: NoUser, has_user: false, pepper: Pepper::of_process(), is_shared: false }
    }
}

impl Default for RequestParts {
    fn default() -> Self {
        Self::new(PeerIp::new())
    }
}

impl<A, U> RequestParts<A, U> {
    /// Reads the part `user` with an extractor or a closure, for example from the extensions of the request.
    ///
    /// A request without a user, under a limit that counts by the user, is rejected like any request with a
    /// [missing key](crate::key::MissingKey).
    pub fn user<V>(self, user: V) -> RequestParts<A, V> {
        let Self { address, pepper, is_shared, .. } = self;
        RequestParts { address, user, has_user: true, pepper, is_shared }
    }

    /// Sets the pepper of headers, cookies and names of Basic users, whose keyed hashes are equal in all processes with
    /// the same pepper. Limits in Redis by these parts need one.
    pub fn pepper(self, pepper: Pepper) -> Self {
        Self { pepper, is_shared: true, ..self }
    }
}

/// No source of users.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct NoUser;

impl<Request> ExtractKey<Request> for NoUser {
    type Key = ();

    fn extract(&self, _: &Request) -> Extracted<()> {
        Extracted::Missing(MissingKey::from_server("user missing: no source is set; call `RequestParts::user`"))
    }
}

/// What the limits in use need of a request.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) rules: Vec<Arc<Rule>>,
    /// The routes that conditions name.
    pub(super) routes: Vec<Arc<NamedRoute>>,
}

/// A route that a condition names.
#[derive(Debug)]
pub(super) struct NamedRoute {
    pub(super) name: String,
    pub(super) value: KeyText,
    pub(super) has_matched: AtomicBool,
}

/// The extractor of [`RouteLimits`](super::RouteLimits).
#[derive(Debug)]
#[doc(hidden)]
pub struct ExtractParts<A, U> {
    pub(super) parts: Arc<RequestParts<A, U>>,
    pub(super) plan: Arc<ArcSwap<Plan>>,
}

impl_clone!([A, U] ExtractParts<A, U> { parts, plan });

impl<B, A, U> ExtractKey<Request<B>> for ExtractParts<A, U>
where
    A: ExtractKey<Request<B>, Key: EncodeKey>,
    U: ExtractKey<Request<B>, Key: EncodeKey>,
{
    type Key = RequestKey;

    fn extract(&self, request: &Request<B>) -> Extracted<RequestKey> {
        let plan = self.plan.load();
        let (mut key, mut missing, mut is_exempt) = (RequestKey::new(), None, false);
        let mut read = |part: &Part| self.read(request, part, &plan);
        for rule in &plan.rules {
            is_exempt |= rule.read(&mut key, &mut read, &mut missing).is_err();
        }
        // A missing part takes precedence, because omitting a header must not lift a limit.
        match missing {
            Some(missing) => Extracted::Missing(missing),
            None if is_exempt => Extracted::Exempt,
            None => Extracted::Key(key),
        }
    }

    fn proxy(&self, request: &Request<B>) -> Option<IpAddr> {
        self.parts.address.proxy(request)
    }
}

impl<A, U> ExtractParts<A, U> {
    fn read<B>(&self, request: &Request<B>, part: &Part, plan: &Plan) -> Extracted<KeyText>
    where
        A: ExtractKey<Request<B>, Key: EncodeKey>,
        U: ExtractKey<Request<B>, Key: EncodeKey>,
    {
        match &part.source {
            // Servers answer HEAD as GET.
            Source::Method if request.method() == http::Method::HEAD => Extracted::Key(KeyText::from("GET")),
            Source::Method => Extracted::Key(KeyText::from(request.method().as_str())),
            Source::Route => match route(request) {
                Some(route) => {
                    let route = KeyText::from(route);
                    plan.saw(&route);
                    Extracted::Key(route)
                }
                None => Extracted::Missing(MissingKey::from_server(NO_ROUTER)),
            },
            Source::Path => Path.extract(request),
            Source::Host => Host::new().extract(request),
            Source::Address => self.parts.address.extract(request).map(|address| text_of(&address)),
            Source::User => self.parts.user.extract(request).map(|user| text_of(&user)),
            Source::BasicUser(credential) | Source::HeaderOrCookie(credential) => {
                credential.extract(request).map(|credential| text_of(&credential))
            }
        }
    }
}

const NO_ROUTER: &str = "route missing: the layer is outside of the router; add it with `Router::layer` or \
                         `Router::route_layer`";

/// Returns the route, or `NO_ROUTE` within a router that has none for the request.
#[cfg(feature = "axum")]
fn route<B>(request: &Request<B>) -> Option<&str> {
    use axum::extract::{MatchedPath, OriginalUri};

    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    route.or_else(|| request.extensions().get::<OriginalUri>().map(|_| NO_ROUTE))
}

#[cfg(not(feature = "axum"))]
fn route<B>(_: &Request<B>) -> Option<&str> {
    None
}

impl Plan {
    /// Notes that a request has a route.
    fn saw(&self, route: &KeyText) {
        let named = self.routes.iter().find(|named| named.value == *route);
        if let Some(named) = named.filter(|named| !named.has_matched.load(Ordering::Relaxed)) {
            named.has_matched.store(true, Ordering::Relaxed);
        }
    }
}
