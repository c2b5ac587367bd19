//! The key extractors, except the peer's and the client's address.
//!
//! - `secrets`: tokens, API keys and cookies, stored only as fingerprints
//! - `spellings`: canonical forms, and the encodings of a `Basic` user
//! - `cookies`: the spellings of a cookie, compared with the crate `cookie`
//! - `targets`: host, path, route, method
//! - `either`: alternative keys
//! - `duplicates`: absent and unusable keys
//! - `lookups`: keys from an asynchronous lookup

mod client_ip;
mod cookies;
mod duplicates;
mod either;
mod lookups;
mod secrets;
mod spellings;
mod support;
mod targets;
#[path = "../tasks.rs"]
mod tasks;
