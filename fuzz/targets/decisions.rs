#![no_main]

#[path = "../../tests/http/fuzz/decisions.rs"]
mod decisions;
#[path = "../../tests/laws/algorithms/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;
#[path = "../../tests/laws/algorithms/model/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;
#[path = "../../tests/laws/algorithms/schedule.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod schedule;
#[path = "../../tests/laws/algorithms/span.rs"]
mod span;

libfuzzer_sys::fuzz_target!(|input: &[u8]| decisions::check(input));
