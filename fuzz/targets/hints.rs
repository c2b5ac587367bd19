#![no_main]

#[path = "../../tests/http/fuzz/hints.rs"]
mod hints;

libfuzzer_sys::fuzz_target!(|input: &[u8]| hints::check(input));
