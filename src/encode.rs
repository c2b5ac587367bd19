//! Encoding of keys as text, for stores that many processes share.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::scratch::with_scratch;

/// Encoding of a key as text, for a store that many processes share.
///
/// Different keys of one type must have different encodings. The implementations for numbers, addresses, text, bytes
/// and tuples do that. A type of your own can encode a tuple of its parts:
///
/// ```
/// use tower_ratelimit::key::{EncodeKey, KeyWriter};
///
/// enum Caller {
///     User(u64),
///     Anonymous(std::net::IpAddr),
/// }
///
/// impl EncodeKey for Caller {
///     fn encode(&self, key: &mut KeyWriter) {
///         match self {
///             Self::User(id) => ("user", id).encode(key),
///             Self::Anonymous(address) => ("anonymous", address).encode(key),
///         }
///     }
/// }
///
/// let mut key = KeyWriter::new();
/// Caller::User(7).encode(&mut key);
/// assert_eq!(key.as_str(), "user,7");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be encoded as a key of a shared store",
    note = "implement `tower_ratelimit::key::EncodeKey` for it, or count by a sub-key with `Limit::keyed_by`",
    note = "a `Fingerprint` differs between processes: set `.pepper(Pepper::new(..)?)` on the \
            `Credential`, whose key is then a `Fingerprint<Pepper>`"
)]
pub trait EncodeKey {
    /// Appends the encoding of `self` to `key`.
    fn encode(&self, key: &mut KeyWriter);

    /// Feeds `self` to a hasher, so that keys have equal hashes if they have equal encodings, and practically only then.
    ///
    /// The default feeds the encoding. Numbers, addresses and text feed themselves, which takes a quarter of the
    /// instructions of a leased decision less: benches/NOTES.md has the figures.
    #[doc(hidden)]
    fn hash_key(&self, hasher: &mut dyn Hasher) {
        KeyWriter::with_buffer(|key| {
            self.encode(key);
            // No encoding contains the last byte, so parts that follow each other stay apart.
            hasher.write(key.as_str().as_bytes());
            hasher.write_u8(0xFF);
        });
    }
}

/// Hashes the value. `Hash` distinguishes the same values of these types as their encodings do.
macro_rules! hash_value {
    () => {
        #[inline]
        fn hash_key(&self, mut hasher: &mut dyn Hasher) {
            self.hash(&mut hasher);
        }
    };
}

/// A buffer for the encoding of a key: see [`EncodeKey`].
///
/// ASCII letters, digits and `-._@/+=` are written unchanged; all other bytes are percent-encoded (`%2C`). So text
/// that a client chooses cannot imitate another part of a key, and its braces cannot choose the key's cluster slot.
#[derive(Clone, Debug, Default)]
pub struct KeyWriter {
    text: String,
    /// Where the encoding starts in `text`. The text before it is the prefix of the key's name, and other keys.
    start: usize,
    /// Whether a comma must precede the next part.
    needs_separator: bool,
}

impl KeyWriter {
    /// Creates an empty buffer.
    pub const fn new() -> Self {
        Self { text: String::new(), start: 0, needs_separator: false }
    }

    /// Passes an empty buffer that the thread keeps, so that most calls allocate nothing.
    pub(crate) fn with_buffer<R>(f: impl FnOnce(&mut Self) -> R) -> R {
        thread_local! {
            static BUFFER: Cell<KeyWriter> = const { Cell::new(KeyWriter::new()) };
        }
        // An encoding may hash another key, which then gets a buffer of its own.
        with_scratch(&BUFFER, |buffer| {
            buffer.clear();
            f(buffer)
        })
    }

    /// Returns the encoding.
    pub fn as_str(&self) -> &str {
        &self.text[self.start..]
    }

    /// Appends one part of any bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.start_part();
        // An empty part must differ from no part. A lone `%` is not the encoding of any byte.
        if bytes.is_empty() {
            self.text.push('%');
        }
        self.push_encoded(bytes);
    }

    /// Appends one part of the text of a value, which is not empty.
    pub(crate) fn text_of(&mut self, value: impl fmt::Display) {
        self.start_part();
        // Appending to a string cannot fail.
        let _ = write!(Encoded(self), "{value}");
    }

    fn push_encoded(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let unchanged = rest.iter().position(|byte| !is_unchanged(*byte)).unwrap_or(rest.len());
            let (part, others) = rest.split_at(unchanged);
            // All of these bytes are ASCII.
            self.text.push_str(std::str::from_utf8(part).unwrap_or_default());
            rest = others;
            if let Some((byte, others)) = rest.split_first() {
                let digit = |nibble: u8| char::from(b"0123456789ABCDEF"[usize::from(nibble)]);
                self.text.extend(['%', digit(byte >> 4), digit(byte & 15)]);
                rest = others;
            }
        }
    }

    /// Appends one part that consists of other parts, such as a tuple within a tuple.
    pub fn group(&mut self, parts: impl FnOnce(&mut Self)) {
        self.start_part();
        self.text.push('(');
        self.needs_separator = false;
        parts(self);
        self.text.push(')');
        self.needs_separator = true;
    }

    fn start_part(&mut self) {
        if self.needs_separator {
            self.text.push(',');
        }
        self.needs_separator = true;
    }

    fn push_raw(&mut self, part: &str) {
        self.start_part();
        self.text.push_str(part);
    }

    /// Removes all parts, and keeps the allocation.
    pub fn clear(&mut self) {
        self.text.truncate(self.start);
        self.needs_separator = false;
    }

    /// Starts another key, behind a prefix that [`as_str`](Self::as_str) does not return.
    #[cfg(feature = "redis")]
    pub(crate) fn start_key(&mut self, prefix: &[&str]) {
        self.text.extend(prefix.iter().copied());
        self.start = self.text.len();
        self.needs_separator = false;
    }

    /// Replaces the encoding of the last key.
    #[cfg(feature = "redis")]
    pub(crate) fn replace_key(&mut self, encoding: &str) {
        self.text.truncate(self.start);
        self.text.push_str(encoding);
    }

    /// Returns the names of all keys, concatenated.
    #[cfg(feature = "redis")]
    pub(crate) fn into_names(self) -> String {
        self.text
    }

    /// Creates a buffer that has space for so many bytes.
    #[cfg(feature = "redis")]
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), ..Self::default() }
    }

    /// The length of all names.
    #[cfg(feature = "redis")]
    pub(crate) fn names_len(&self) -> usize {
        self.text.len()
    }
}

/// Encodes the text that is written.
struct Encoded<'a>(&'a mut KeyWriter);

impl Write for Encoded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_encoded(text.as_bytes());
        Ok(())
    }
}

/// The maximum length of a key in a shared store, in bytes. A longer key is replaced by its hash.
pub(crate) const MAX_KEY_LEN: usize = 128;

/// Returns `#` and the SHA-256 of a key that is too long. The encoding of a key contains no `#`.
pub(crate) fn hash_if_long(key: &str) -> Option<String> {
    (key.len() > MAX_KEY_LEN).then(|| hex('#', &Sha256::digest(key.as_bytes())))
}

/// Returns the bytes as hexadecimal digits behind a sign.
pub(crate) fn hex(sign: char, bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    std::iter::once(sign).chain(digits).collect()
}

const fn is_unchanged(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'@' | b'/' | b'+' | b'=')
}

macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl EncodeKey for $integer {
            fn encode(&self, key: &mut KeyWriter) {
                key.push_raw(itoa::Buffer::new().format(*self));
            }

            hash_value!();
        }
    )+};
}

integers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! values {
    ($([$($generics:tt)*] $type:ty: |$value:ident, $key:ident| $encode:expr,)+) => {$(
        impl<$($generics)*> EncodeKey for $type {
            fn encode(&self, $key: &mut KeyWriter) {
                let $value = self;
                $encode;
            }

            hash_value!();
        }
    )+};
}

// The colons of an IPv6 address are percent-encoded.
values! {
    [] bool: |value, key| key.push_raw(if *value { "true" } else { "false" }),
    [] char: |value, key| key.bytes(value.encode_utf8(&mut [0; 4]).as_bytes()),
    [] str: |value, key| key.bytes(value.as_bytes()),
    [] String: |value, key| key.bytes(value.as_bytes()),
    [] [u8]: |value, key| key.bytes(value),
    [] Vec<u8>: |value, key| key.bytes(value),
    [const N: usize] [u8; N]: |value, key| key.bytes(value),
    [] IpAddr: |value, key| key.text_of(value),
    [] Ipv4Addr: |value, key| key.text_of(value),
    [] Ipv6Addr: |value, key| key.text_of(value),
}

/// The encoding of an IPv6 address has no flow information, in contrast to its `Hash`.
impl EncodeKey for SocketAddr {
    fn encode(&self, key: &mut KeyWriter) {
        key.text_of(self);
    }
}

/// All keys have the same, empty encoding.
impl EncodeKey for () {
    fn encode(&self, _key: &mut KeyWriter) {}

    hash_value!();
}

/// `Some` is in parentheses and `None` is `-`, so that `Some(())` differs from `None`.
impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode(&self, key: &mut KeyWriter) {
        match self {
            Some(some) => key.group(|key| some.encode(key)),
            None => key.push_raw("-"),
        }
    }
}

macro_rules! pointers {
    ($([$($bound:tt)+] $pointer:ty,)+) => {$(
        impl<T: EncodeKey + $($bound)+> EncodeKey for $pointer {
            fn encode(&self, key: &mut KeyWriter) {
                (**self).encode(key);
            }

            #[inline]
            fn hash_key(&self, hasher: &mut dyn Hasher) {
                (**self).hash_key(hasher);
            }
        }
    )+};
}

pointers! {
    [?Sized] &T,
    [?Sized] Box<T>,
    [?Sized] Arc<T>,
    [ToOwned + ?Sized] Cow<'_, T>,
}

/// A tuple within a tuple is in parentheses.
macro_rules! tuples {
    ($(($($part:ident $index:tt),+))+) => {$(
        impl<$($part: EncodeKey),+> EncodeKey for ($($part,)+) {
            fn encode(&self, key: &mut KeyWriter) {
                let write = |key: &mut KeyWriter| {
                    $(self.$index.encode(key);)+
                };
                // Commas separate the outermost parts. An inner tuple needs parentheses: `((a, b), c)` differs from
                // `(a, (b, c))`.
                if key.as_str().is_empty() { write(key) } else { key.group(write) }
            }

            #[inline]
            fn hash_key(&self, hasher: &mut dyn Hasher) {
                $(self.$index.hash_key(hasher);)+
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}
