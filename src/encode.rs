//! How keys are written in a store that many processes share.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

/// How a key is written in a store that many processes share.
///
/// Two keys of one type must never be written alike. Numbers, addresses, text, bytes and tuples of them are; a type of
/// your own is written as its parts, one after the other:
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
    message = "`{Self}` can't be written as a key of a shared store",
    note = "implement `tower_ratelimit::key::EncodeKey` for it, or count by a part of it with `Limit::keyed_by`"
)]
pub trait EncodeKey {
    /// Writes it.
    fn encode(&self, key: &mut KeyWriter);
}

/// A key being written: see [`EncodeKey`].
///
/// Text is written as it is where it consists of ASCII letters, digits and `-._@/+=`; all other bytes are escaped as in
/// addresses of the web (`%2C`). So what a client chooses can't look like a part of another key, and no brace of it steers a
/// key to a slot of a cluster.
#[derive(Clone, Debug, Default)]
pub struct KeyWriter {
    text: String,
    /// Whether the next part follows another one.
    follows: bool,
}

impl KeyWriter {
    /// Nothing written yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is written so far.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Writes one part: any bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.begin();
        // Nothing at all must differ from no part.
        if bytes.is_empty() {
            self.text.push('%');
        }
        for &byte in bytes {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'@' | b'/' | b'+' | b'=' => {
                    self.text.push(char::from(byte));
                }
                _ => {
                    let digit = |nibble: u8| char::from(b"0123456789ABCDEF"[usize::from(nibble)]);
                    self.text.extend(['%', digit(byte >> 4), digit(byte & 15)]);
                }
            }
        }
    }

    /// Writes one part that is made of other parts: a tuple or a list within another one.
    pub fn group(&mut self, parts: impl FnOnce(&mut Self)) {
        self.begin();
        self.text.push('(');
        self.follows = false;
        parts(self);
        self.text.push(')');
        self.follows = true;
    }

    fn begin(&mut self) {
        if self.follows {
            self.text.push(',');
        }
        self.follows = true;
    }

    fn plain(&mut self, part: &str) {
        self.begin();
        self.text.push_str(part);
    }

    /// Begins anew, with the room that there is.
    pub fn clear(&mut self) {
        self.text.clear();
        self.follows = false;
    }
}

macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl EncodeKey for $integer {
            fn encode(&self, key: &mut KeyWriter) {
                key.plain(itoa::Buffer::new().format(*self));
            }
        }
    )+};
}

integers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl EncodeKey for bool {
    fn encode(&self, key: &mut KeyWriter) {
        key.plain(if *self { "true" } else { "false" });
    }
}

impl EncodeKey for char {
    fn encode(&self, key: &mut KeyWriter) {
        self.encode_utf8(&mut [0; 4]).encode(key);
    }
}

impl EncodeKey for str {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self.as_bytes());
    }
}

impl EncodeKey for String {
    fn encode(&self, key: &mut KeyWriter) {
        self.as_str().encode(key);
    }
}

impl EncodeKey for [u8] {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self);
    }
}

impl<const N: usize> EncodeKey for [u8; N] {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self);
    }
}

/// An IPv6 address is written with its colons escaped.
impl EncodeKey for IpAddr {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self.to_string().as_bytes());
    }
}

impl EncodeKey for Ipv4Addr {
    fn encode(&self, key: &mut KeyWriter) {
        IpAddr::V4(*self).encode(key);
    }
}

impl EncodeKey for Ipv6Addr {
    fn encode(&self, key: &mut KeyWriter) {
        IpAddr::V6(*self).encode(key);
    }
}

impl EncodeKey for SocketAddr {
    fn encode(&self, key: &mut KeyWriter) {
        key.bytes(self.to_string().as_bytes());
    }
}

/// One count for all.
impl EncodeKey for () {
    fn encode(&self, _key: &mut KeyWriter) {}
}

/// In parentheses, or `-`: so that a part that is written as nothing at all is still told from none.
impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode(&self, key: &mut KeyWriter) {
        match self {
            Some(some) => key.group(|key| some.encode(key)),
            None => key.plain("-"),
        }
    }
}

macro_rules! pointers {
    ($($pointer:ty),+) => {$(
        impl<T: EncodeKey + ?Sized> EncodeKey for $pointer {
            fn encode(&self, key: &mut KeyWriter) {
                (**self).encode(key);
            }
        }
    )+};
}

pointers!(&T, Box<T>, Rc<T>, Arc<T>);

impl<T: EncodeKey + ToOwned + ?Sized> EncodeKey for Cow<'_, T> {
    fn encode(&self, key: &mut KeyWriter) {
        (**self).encode(key);
    }
}

/// Within a tuple, parts that are tuples stand in parentheses.
macro_rules! tuples {
    ($(($($part:ident $index:tt),+))+) => {$(
        impl<$($part: EncodeKey),+> EncodeKey for ($($part,)+) {
            fn encode(&self, key: &mut KeyWriter) {
                let write = |key: &mut KeyWriter| {
                    $(self.$index.encode(key);)+
                };
                // The outermost parts are told apart by their commas; as a part of another one, a tuple needs its bounds.
                if key.text.is_empty() { write(key) } else { key.group(write) }
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
