#![no_main]

#[path = "../../tests/http/fuzz/headers.rs"]
mod headers;

libfuzzer_sys::fuzz_target!(|sent: &[u8]| headers::check(sent));
