//! Files that are torn, foreign or old.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tower_ratelimit::{Gcra, Limiter, ManualClock, Memory, MemoryBuilder, Quota};

use super::world::{Op, World};
use crate::random::Random;

fn builder() -> MemoryBuilder<u64, Gcra> {
    Memory::builder(Gcra::new(Quota::per_hour(10))).max_keys(100).clock(ManualClock::new())
}

fn file() -> Vec<u8> {
    let limiter = builder().build().expect("a limit");
    assert!(limiter.check(&1, 3).is_allowed());
    let _ = limiter.block("default", &2, std::time::Duration::from_secs(60)).try_ready();
    let mut file = Vec::new();
    limiter.save(&mut file).expect("saved");
    file
}

/// Returns the error of a file, and checks that a limiter starts empty with it on request.
fn error_of(file: &[u8]) -> String {
    let error = builder().restore(file).build().expect_err("an error");
    assert!(error.is_config());
    let told = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&told);
    let text = error.to_string();
    let expected = text.clone();
    let on_error = move |error: &tower_ratelimit::Error| {
        assert_eq!(error.to_string(), expected);
        flag.store(true, Ordering::Relaxed);
    };
    let empty = builder().restore_or_empty(file, on_error).build().expect("an empty limiter");
    assert!(told.load(Ordering::Relaxed));
    assert_eq!(empty.check(&1, 1).remaining(), Some(9));
    assert!(empty.check(&2, 1).is_allowed());
    text
}

#[test]
fn snapshot_that_is_whole_is_restored() {
    let limiter = builder().restore(&*file()).build().expect("restored");
    assert_eq!(limiter.check(&1, 1).remaining(), Some(6));
    assert!(!limiter.check(&2, 1).is_allowed());
    assert_eq!(limiter.check(&3, 1).remaining(), Some(9));
}

#[test]
fn snapshot_that_is_torn_anywhere_is_an_error() {
    let file = file();
    for length in 0..file.len() {
        let text = error_of(&file[..length]);
        assert!(text.contains("incomplete or damaged"), "{length}: {text}");
    }
}

#[test]
fn snapshot_with_any_wrong_byte_is_an_error() {
    let whole = file();
    for position in 0..whole.len() {
        let mut file = whole.clone();
        file[position] ^= 0x41;
        let text = error_of(&file);
        let cause = match position {
            0..=15 => "is not one that `Memory::save` has written",
            16..=19 => "has version",
            _ => "incomplete or damaged",
        };
        assert!(text.contains(cause), "{position}: {text}");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(error_of(&longer).contains("incomplete or damaged"));
}

#[test]
fn snapshot_of_another_kind_or_version_is_an_error() {
    assert_eq!(
        error_of(b"{\"limits\": []}"),
        "restoring the saved counts failed: the file is not one that `Memory::save` has written; check its path; start \
         empty (`restore_or_empty`)"
    );
    let mut file = file();
    file[16..20].copy_from_slice(&7_u32.to_le_bytes());
    assert_eq!(
        error_of(&file),
        "restoring the saved counts failed: the file has version 7, and this version of tower-ratelimit reads version 2; \
         start empty (`restore_or_empty`)"
    );
}

/// An endless file of another kind is not read to its end.
#[test]
fn snapshot_is_recognised_by_its_first_bytes() {
    let error = builder().restore(io::repeat(b'x')).build().expect_err("an error");
    assert!(error.to_string().contains("is not one that"), "{error}");
}

struct Fails(&'static [u8]);

impl Read for Fails {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::Error::other("no disk")) } else { self.0.read(buffer) }
    }
}

impl Write for Fails {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = buffer.len().min(self.0.len());
        self.0 = &self.0[written..];
        if written == 0 { Err(io::Error::other("no space")) } else { Ok(written) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn snapshot_errors_of_readers_and_writers_are_returned() {
    let error = builder().restore(Fails(b"tower-ratelimit\n")).build().expect_err("an error");
    assert_eq!(error.to_string(), "restoring the saved counts failed: no disk; check the reader");
    assert!(std::error::Error::source(&error).is_some());

    let limiter = builder().build().expect("a limit");
    let error = limiter.save(Fails(&[0; 40])).expect_err("an error");
    let expected = "saving the counts failed: no space; check the writer, and keep the previous file";
    assert_eq!(error.to_string(), expected);
    assert!(error.is_unavailable());
    // The limiter goes on, and can be saved.
    assert!(limiter.check(&1, 1).is_allowed());
    limiter.save(io::sink()).expect("saved");
}

/// Two saves without a decision in between are the same file: it depends on nothing else.
#[test]
fn snapshot_of_the_same_counts_is_the_same_file() {
    for seed in 0..18 {
        let (mut world, mut random) = (World::new(seed), Random(seed));
        for _ in 0..50 {
            world.run(Op::any(&mut random));
        }
        let first = world.save();
        assert_eq!(first, world.save());
        world.run(Op::EndAll);
        let file = world.save();
        world.restart(&file);
        assert_eq!(world.save().len(), file.len());
    }
}
