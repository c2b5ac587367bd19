use std::io::{self, Read, Write};
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::limit::{LimitNames, SavedNames};
use super::seed::SavedSeed;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::store::memory::table::SavedKind;

/// The first bytes of each file.
const MAGIC: [u8; 16] = *b"tower-ratelimit\n";
/// The version of the format. Raise it with each change of the format, of the words of a state, or of what they mean.
const VERSION: u32 = 2;
const DIGEST: usize = 32;

/// The tag behind the records of a limit, and behind the last limit of the file.
const END: u8 = 0;
/// The tag of a limit. The tags of its records are those of [`SavedKind`].
const LIMIT: u8 = 4;

/// Writes a file.
// Public, as hidden traits name it.
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub struct FileWriter<'a> {
    writer: &'a mut dyn Write,
    digest: Sha256,
    buffer: Vec<u8>,
}

impl<'a> FileWriter<'a> {
    /// Bytes are hashed and written in parts of about this length.
    const PART: usize = 1 << 16;

    pub(in crate::store::memory) fn start(
        writer: &'a mut dyn Write,
        time: Timestamp,
        seed: &SavedSeed,
    ) -> io::Result<Self> {
        let mut file = Self { writer, digest: Sha256::new(), buffer: Vec::with_capacity(Self::PART + (1 << 12)) };
        file.buffer.extend(MAGIC);
        file.buffer.extend(VERSION.to_le_bytes());
        let [first, second] = seed.default.unwrap_or_default();
        file.buffer.push(u8::from(seed.default.is_some()));
        file.numbers(&[time.as_micros(), first, second, seed.probe])?;
        Ok(file)
    }

    /// Starts a limit with a table of `sets` sets.
    pub(super) fn limit(&mut self, names: &SavedNames, sets: usize) -> io::Result<()> {
        self.buffer.push(LIMIT);
        for name in &names.names {
            self.numbers(&[name.len() as u64])?;
            self.buffer.extend(name.as_bytes());
        }
        self.numbers(&[sets as u64])
    }

    pub(super) fn record(&mut self, kind: SavedKind, id: u64, words: &[u64]) -> io::Result<()> {
        self.buffer.push(kind as u8);
        self.numbers(&[id, words.len() as u64])?;
        self.numbers(words)
    }

    pub(super) fn end_limit(&mut self) {
        self.buffer.push(END);
    }

    pub(in crate::store::memory) fn finish(mut self) -> io::Result<()> {
        self.buffer.push(END);
        self.write_buffer()?;
        self.writer.write_all(&self.digest.finalize())?;
        self.writer.flush()
    }

    fn numbers(&mut self, numbers: &[u64]) -> io::Result<()> {
        self.buffer.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        if self.buffer.len() < Self::PART { Ok(()) } else { self.write_buffer() }
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        self.digest.update(&self.buffer);
        self.writer.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// A file that was read, whose form is valid.
pub(in crate::store::memory) struct SavedCounts {
    bytes: Vec<u8>,
    pub(super) time: Timestamp,
    pub(super) seed: SavedSeed,
    pub(super) limits: Vec<LimitRecords>,
}

/// A limit of a file.
pub(super) struct LimitRecords {
    pub(super) names: LimitNames,
    pub(super) sets: usize,
    bytes: Range<usize>,
}

/// A record of a limit: a [`SavedItem`](crate::store::memory::table::SavedItem).
pub(super) struct Record {
    pub(super) kind: SavedKind,
    pub(super) id: u64,
    pub(super) words: Vec<u64>,
}

impl SavedCounts {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or is not whole, or is of another kind or version.
    pub(in crate::store::memory) fn read(mut reader: impl Read) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let mut start = |bytes: &mut Vec<u8>, up_to| (&mut reader).take(up_to).read_to_end(bytes).map_err(unreadable);
        start(&mut bytes, (MAGIC.len() + 4) as u64)?;
        if !bytes.starts_with(&MAGIC[..MAGIC.len().min(bytes.len())]) {
            return Err(failed("the file is not one that `Memory::save` has written; check its path"));
        }
        if let Some(version) = bytes.get(MAGIC.len()..).and_then(|version| version.try_into().ok())
            && u32::from_le_bytes(version) != VERSION
        {
            return Err(failed(&format!(
                "the file has version {}, and this version of tower-ratelimit reads version {VERSION}",
                u32::from_le_bytes(version)
            )));
        }
        start(&mut bytes, u64::MAX)?;
        let torn = || failed("the file is incomplete or damaged, as its checksum shows");
        let length = bytes.len().checked_sub(DIGEST).ok_or_else(torn)?;
        let digest = bytes.split_off(length);
        if *Sha256::digest(&bytes) != *digest {
            return Err(torn());
        }
        parse(bytes).ok_or_else(|| failed("the contents of the file are invalid"))
    }

    /// Returns the records of a limit.
    pub(super) fn records(&self, limit: &LimitRecords) -> impl Iterator<Item = Record> {
        let mut bytes = Bytes(self.bytes.get(limit.bytes.clone()).unwrap_or_default());
        std::iter::from_fn(move || match bytes.tag()? {
            END => None,
            tag => bytes.record(tag),
        })
    }
}

fn failed(cause: &str) -> Error {
    Error::config(format!("restoring the saved counts failed: {cause}; start empty (`restore_or_empty`)"))
}

fn unreadable(error: io::Error) -> Error {
    Error::config(format!("restoring the saved counts failed: {error}; check the reader")).with_source(error)
}

/// Checks the form of the whole file. Returns `None` if it is invalid.
fn parse(bytes: Vec<u8>) -> Option<SavedCounts> {
    let mut rest = Bytes(bytes.get(MAGIC.len() + 4..)?);
    let is_default = rest.tag()?;
    let [time, first, second, probe] = rest.numbers()?;
    let default = match is_default {
        0 => None,
        1 => Some([first, second]),
        _ => return None,
    };
    let mut limits = Vec::new();
    loop {
        match rest.tag()? {
            END => break,
            LIMIT => {}
            _ => return None,
        }
        let names = [rest.text()?, rest.text()?, rest.text()?];
        let [sets] = rest.numbers()?;
        let start = bytes.len() - rest.0.len();
        loop {
            match rest.tag()? {
                END => break,
                tag => rest.record(tag)?,
            };
        }
        let sets = usize::try_from(sets).ok()?;
        limits.push(LimitRecords { names, sets, bytes: start..bytes.len() - rest.0.len() });
    }
    let is_whole = rest.0.is_empty();
    let (time, seed) = (Timestamp::from_micros(time), SavedSeed { default, probe });
    is_whole.then_some(SavedCounts { bytes, time, seed, limits })
}

/// The bytes that are not read yet. Each method returns `None` if there are too few.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn tag(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn numbers<const N: usize>(&mut self) -> Option<[u64; N]> {
        let bytes = self.take(N * 8)?.as_chunks::<8>().0;
        Some(std::array::from_fn(|index| u64::from_le_bytes(bytes[index])))
    }

    fn text(&mut self) -> Option<String> {
        let [length] = self.numbers()?;
        let bytes = self.take(usize::try_from(length).ok()?)?;
        String::from_utf8(bytes.to_vec()).ok()
    }

    /// Returns the record behind its tag.
    fn record(&mut self, tag: u8) -> Option<Record> {
        let kind = [SavedKind::Key, SavedKind::Debt, SavedKind::Block].into_iter().find(|kind| *kind as u8 == tag)?;
        let [id, count] = self.numbers()?;
        // Allocates only for bytes that are there, whatever count a file names.
        let bytes = self.take(usize::try_from(count).ok()?.checked_mul(8)?)?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Record { kind, id, words })
    }
}
