//! What reads a client's header fields, under coverage-guided fuzzing: `cargo fuzz run -s none headers`, with cargo-fuzz.
//! Nightly Rust is not needed for that; a C++ compiler is.
//!
//! Each run of the tests fuzzes the same for a moment, without any of these: see `tests/extractors/client_ip/fuzz.rs`.

#![no_main]

#[path = "../tests/extractors/client_ip/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|sent: &[u8]| invariants::check(sent));
