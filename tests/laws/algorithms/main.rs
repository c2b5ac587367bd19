//! Properties of every algorithm, checked against slow and simple reference models in virtual time.

mod algorithm_ext;
mod bounds;
mod broken_holds;
mod bucket;
mod calendar;
mod carry_over;
mod changed_periods;
mod changing_tiers;
mod combined;
mod drift;
mod extremes;
mod fixed_window;
mod harness;
mod holds_liveness;
mod in_flight;
mod invalid_config;
mod kept_charges;
mod keys;
mod law_checks;
mod lua_numbers;
mod model;
mod options;
mod purity;
mod quota_text;
#[path = "../../../src/random.rs"]
mod random;
mod retry;
mod saturation;
mod schedule;
mod sliding;
mod span;
mod windows;
mod worst_case;

use proptest::test_runner::Config;

/// Configures `cases` cases, unless `PROPTEST_CASES` is set. A failure is to become a test of its own.
fn cases(cases: u32) -> Config {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() }
}
