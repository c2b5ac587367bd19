#![no_main]

#[path = "../../simulate/tests/simulate/log_fuzz.rs"]
mod log;

libfuzzer_sys::fuzz_target!(|input: &[u8]| log::check(input));
