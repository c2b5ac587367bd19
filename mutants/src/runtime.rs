//! Part of the mutated crate: selects one mutant at run time.
//!
//! `MUTANT=7` activates the mutant with the number 7. `MUTANTS_REACHED=FILE` activates none, and appends the number of
//! each mutant that the process reaches to the file. `MUTANT_LUA=FILE` replaces a part of each Lua script: the file has
//! the original part, a zero byte and the replacement.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

const NONE: u32 = 0;
const RECORDING: u32 = u32::MAX - 1;
const UNKNOWN: u32 = u32::MAX;

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicU8; 65_536] = [const { AtomicU8::new(0) }; 65_536];
static REACHED_FILE: OnceLock<File> = OnceLock::new();

/// Returns whether the mutant is active. A constant expression contains no mutant.
#[inline]
pub const fn on(mutant: u32) -> bool {
    std::intrinsics::const_eval_select((mutant,), never, is_active)
}

const fn never(_mutant: u32) -> bool {
    false
}

#[inline]
fn is_active(mutant: u32) -> bool {
    match ACTIVE.load(Ordering::Relaxed) {
        RECORDING | UNKNOWN => slow(mutant),
        active => active == mutant,
    }
}

#[cold]
fn slow(mutant: u32) -> bool {
    if ACTIVE.load(Ordering::Relaxed) == UNKNOWN {
        if let Some(path) = std::env::var_os("MUTANTS_REACHED") {
            REACHED_FILE.get_or_init(|| OpenOptions::new().create(true).append(true).open(path).expect("a file"));
            ACTIVE.store(RECORDING, Ordering::Relaxed);
        } else {
            let number = std::env::var("MUTANT").map_or(NONE, |number| number.parse().expect("a number"));
            ACTIVE.store(number, Ordering::Relaxed);
            return number == mutant;
        }
    }
    if REACHED[mutant as usize].swap(1, Ordering::Relaxed) == 0 {
        let mut file = REACHED_FILE.get().expect("a file");
        file.write_all(&mutant.to_le_bytes()).expect("written");
    }
    false
}

/// Returns the text of a Lua script with the active mutant. Records the script instead if reached mutants are recorded.
pub fn lua(text: String) -> String {
    if let Some(path) = std::env::var_os("MUTANTS_REACHED_LUA") {
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
        file.write_all(format!("{text}\0").as_bytes()).expect("written");
    }
    match std::env::var_os("MUTANT_LUA") {
        None => text,
        Some(path) => {
            let replacement = std::fs::read_to_string(path).expect("the replacement");
            let (original, mutated) = replacement.split_once('\0').expect("two texts");
            text.replace(original, mutated)
        }
    }
}
