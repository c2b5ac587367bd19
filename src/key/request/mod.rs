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
