#![no_main]

#[path = "../../tests/fuzz/decisions.rs"]
mod decisions;
#[path = "../../tests/algorithms/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;
#[path = "../../tests/algorithms/model/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;
#[path = "../../tests/algorithms/schedule.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod schedule;
#[path = "../../tests/algorithms/span.rs"]
mod span;

libfuzzer_sys::fuzz_target!(|input: &[u8]| decisions::check(input));
