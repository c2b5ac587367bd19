//! Keys from parts of the request line and from header fields.

mod header;
mod host;
#[cfg(feature = "axum")]
mod matched_path;
mod method;
mod path;

pub use self::header::Header;
pub(in crate::key) use self::header::{lower_case_name, only_value};
pub use self::host::Host;
#[cfg(feature = "axum")]
pub use self::matched_path::MatchedPath;
pub use self::method::Method;
pub use self::path::Path;
pub(crate) use self::path::path_of;

/// The route of requests without one. Never equals a route, because routes begin with a slash.
#[cfg(any(feature = "axum", feature = "serde"))]
pub(crate) const NO_ROUTE: &str = "no route";
