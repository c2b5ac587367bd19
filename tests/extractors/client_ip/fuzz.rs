//! Fuzzing: well-formed fields with a few changed bytes.

use std::env;

use super::invariants::check;

const CORPUS: &[&str] = &[
    "192.0.2.1, 10.0.0.2\n10.0.0.3:80",
    "\"[2001:db8::1%25eth0]:4711\", 2001:db8::2,::ffff:10.0.0.2",
    "unknown, _hidden,, 64:ff9b::192.0.2.1",
    "for=192.0.2.60;proto=http;by=203.0.113.43, For=\"[2001:db8:cafe::17]:4711\"",
    "for=\"\\1\\92.0.2.1:_port\";x=\"a\\\"b\\\\,;\"\nfor=_hidden, for=unknown;;",
    "Bearer mF_9.B5f-4.1JqM",
    "a=b; session=\"31d4d96e407aad42\"; session_=x;session",
    "Example.ORG.:8080",
    "[2001:DB8::1]:80",
];

/// Bytes with a meaning for the parsers, more frequent than at random.
const LIKELY: &[u8] = b",;=\"\\[]:.% \tf_0\n";

/// A pseudo-random generator (xorshift) with the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).expect("48 bits fit") % end
    }

    fn byte(&mut self) -> u8 {
        match self.below(3) {
            0 => u8::try_from(self.below(256)).expect("a byte"),
            _ => LIKELY[self.below(LIKELY.len())],
        }
    }

    fn change(&mut self, text: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let position = self.below(text.len() + 1);
        match self.below(6) {
            0 | 1 => text.insert(position, self.byte()),
            2 if position < text.len() => text[position] = self.byte(),
            3 if position < text.len() => drop(text.remove(position)),
            4 => text.truncate(position),
            _ => {
                let other = &corpus[self.below(corpus.len())];
                let start = self.below(other.len());
                let end = start + self.below(other.len() - start) + 1;
                drop(text.splice(position..position, other[start..end].iter().copied()));
            }
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number: {text:?}")))
}

#[test]
fn invariants_hold_for_mutated_fields() {
    let corpus: Vec<_> = CORPUS.iter().map(|text| text.as_bytes().to_vec()).collect();
    for text in &corpus {
        check(text);
    }
    let seed = setting("FUZZ_SEED", 1);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for round in 0..setting("FUZZ_ROUNDS", 10_000) {
        let mut text = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(8) {
            random.change(&mut text, &corpus);
        }
        // Printed if the check panics.
        let context = FailureContext { seed, round, text: &text };
        check(&text);
        std::mem::forget(context);
    }
}

struct FailureContext<'a> {
    seed: u64,
    round: u64,
    text: &'a [u8],
}

impl Drop for FailureContext<'_> {
    fn drop(&mut self) {
        eprintln!("seed {}, round {}: \"{}\"", self.seed, self.round, self.text.escape_ascii());
    }
}
