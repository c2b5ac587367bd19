//! The check is in the library, behind `cfg(fuzzing)`, which cargo-fuzz sets. Without it this target is empty.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|replies: &[u8]| tower_ratelimit::store::check_any_replies(replies));

#[cfg(not(fuzzing))]
fn main() {}
