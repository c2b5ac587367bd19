//! The ready-made keys. (`tests/middleware/keys.rs` has the first ones, `tests/client_ip/` the client's address.)
//!
//! - `secrets`: tokens, API keys and cookies, of which nothing but fingerprints is kept
//! - `cookies`: the spellings of a session, against the crate `cookie`
//! - `targets`: the host, the path, the route, the method
//! - `either`: one key or else another
//! - `duplicates`: absent and unusable keys
//! - `lookups`: keys that must be looked up

mod client_ip;
mod cookies;
mod duplicates;
mod either;
mod lookups;
mod secrets;
mod support;
mod targets;
