#![no_main]

#[path = "../../tests/http/fuzz/counts.rs"]
mod counts;

libfuzzer_sys::fuzz_target!(|input: &[u8]| counts::check(input));
