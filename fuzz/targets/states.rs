#![no_main]

#[path = "../../tests/http/fuzz/states.rs"]
mod states;

libfuzzer_sys::fuzz_target!(|input: &[u8]| states::check(input));
