//! Limits on the requests of all routes in one file.
//!
//! A file says which requests each limit counts, and by which parts of the requests. The application has one layer, and no
//! other code about limits. If the file changes, the limits change, and clients keep their usage.
//!
//! ```toml
//! [[limits]]
//! name = "login"
//! algorithm = "gcra"
//! quota = "5/min"
//! by = "address"
//! when = { route = "/login", method = "POST" }
//!
//! [[limits]]
//! name = "writes"
//! algorithm = "token-bucket"
//! quota = "10/s"
//! by = ["user", "route"]
//! when = { method = ["POST", "PUT", "DELETE"], route = { not = ["/login", "/webhooks/{source}"] } }
//! ```
//!
#![cfg_attr(not(doctest), doc = include_str!("example.md"))]
//!
//! # Parts of a request
//!
//! | Part | Value |
//! |---|---|
//! | `address` | the key of the extractor in [`RequestParts::new`]: the peer's or the client's address. In conditions, an IPv6 address is the first one of its prefix (/64 unless set): `2001:db8::` |
//! | `user` | the key of the extractor in [`RequestParts::user`]. In conditions, a number or a text |
//! | `basic-user` | the user name of Basic credentials, as a keyed hash |
//! | `method` | the method; HEAD counts as GET |
//! | `route` | axum's route with the prefixes of nested routers, such as `/users/{id}`; `no route` for the fallback and `nest_service` |
//! | `path` | the path that the client sent: a client can vary it, so prefer the route |
//! | `host` | the requested host in lower case, without the port |
//! | `header:NAME`, `cookie:NAME` | the value as a keyed hash |
//!
//! # Requests without a part
//!
//! A limit that applies to a request needs the parts of `by`, and the parts of `when` unless another part shows that
//! the condition does not hold. If the request lacks one of them, the layer rejects it like any request with a
//! [missing key](crate::key::MissingKey): a request without a user never passes, and never shares a count with others. In
//! a layer outside of the router every request lacks the route, which is status 500. For `keep_free` a part that the client
//! has not sent has none of the values.
//!
//! A route whose name is wrong matches no request, so its limit never applies. [`RouteLimits::unmatched_routes`] returns
//! these routes, and [`RouteLimits::watch`] reports them.
//!
//! # Redis
//!
//! [`RequestParts::in_redis`] builds the limits in Redis. Keyed hashes in `by` need a [pepper](RequestParts::pepper)
//! that all processes share.

mod file;
mod key;
mod limits;
mod part;
mod parts;
mod policy;

pub use self::file::RouteFile;
#[cfg(feature = "timer")]
pub use self::file::RouteFileEvent;
pub use self::key::RequestKey;
pub use self::limits::RouteLimits;
pub use self::parts::RequestParts;
pub use self::policy::{RoutePolicies, RoutePolicy};
#[doc(hidden)]
pub use self::{
    limits::RouteStore,
    parts::{ExtractParts, NoUser},
};
