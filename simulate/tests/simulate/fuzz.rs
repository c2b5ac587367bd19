//! The check of the fuzz target `log`, on the committed corpus and on mutations of it.

#[path = "log_fuzz.rs"]
mod log;
#[path = "../../../tests/http/fuzz/mutation.rs"]
mod mutation;

#[test]
fn log() {
    mutation::fuzz("log", b",\"[]{}:-+. \\\n\r/019", 5_000, log::check);
}
