#![no_main]

#[path = "../../tests/http/fuzz/quotas.rs"]
mod quotas;

libfuzzer_sys::fuzz_target!(|input: &[u8]| quotas::check(input));
