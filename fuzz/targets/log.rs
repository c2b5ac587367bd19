#![no_main]

#[path = "../../tests/fuzz/log.rs"]
mod log;

libfuzzer_sys::fuzz_target!(|input: &[u8]| log::check(input));
