//! Coverage-guided fuzzing of the parsers of client header fields: `cargo fuzz run -s none headers`.
//!
//! Needs cargo-fuzz and a C++ compiler, but not nightly Rust. The tests run the same checks on random input:
//! `tests/extractors/client_ip/fuzz.rs`.

#![no_main]

#[path = "../tests/extractors/client_ip/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|sent: &[u8]| invariants::check(sent));
