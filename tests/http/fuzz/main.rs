//! The checks of the fuzz targets, on the committed corpus and on mutations of it.
//!
//! `FUZZ_ROUNDS=1000000` runs longer, `FUZZ_SEED=7` sets another seed. `scripts/fuzz` runs the same checks guided by
//! coverage. The target `log` is in `simulate/tests`, and `replies` in the library,
//! because its server is not public.

mod config;
mod counts;
mod decisions;
// The models and the schedules of the algorithms' tests.
#[path = "../../laws/algorithms/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;
mod headers;
mod hints;
#[path = "../../laws/algorithms/model/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;
mod mutation;
mod quotas;
#[path = "../../laws/algorithms/schedule.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod schedule;
#[path = "../../laws/algorithms/span.rs"]
mod span;
mod states;

use self::mutation::fuzz;

#[test]
fn counts_snapshot() {
    fuzz("counts", b"\0\x01\x02\x03\x04\xff", 2_000, counts::check);
}

#[test]
fn headers() {
    fuzz("headers", b",;=\"\\[]:.% \tf_0\n", 4_000, headers::check);
}

#[test]
fn hints() {
    fuzz("hints", b",;=\"-:. 0189tr\n\0\x01\x02\x03\x04\x05", 4_000, hints::check);
}

#[test]
fn config() {
    fuzz("config", b"{}[]\",:= \n_019/-", 2_000, config::check);
}

#[test]
fn quotas() {
    fuzz("quotas", b"/ _019smhdwup:.[]@", 8_000, quotas::check);
}

#[test]
fn decisions() {
    fuzz("decisions", b"\0\x01\xff", 80, decisions::check);
}

#[test]
fn states() {
    fuzz("states", b"\0\x01\xff", 2_000, states::check);
}
