use std::net::IpAddr;

use super::node;

/// The elements of a line of `Forwarded` (RFC 7239), from right to left: the address of each, or `None` where there is
/// none, after which nothing follows.
///
/// Read from the right, because the right end is what trusted proxies have written: a quote that a client has opened,
/// left of it, swallows nothing. A well-formed element is read in full either way: within a quoted string a quote
/// follows an odd number of backslashes, and the one that opens it follows a `=`.
pub(super) struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { rest: Some(line) }
    }
}

impl Iterator for Elements<'_> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Option<IpAddr>> {
        let (address, rest) = match element(self.rest?) {
            Some((address, rest)) => (Some(address), rest),
            None => (None, None),
        };
        self.rest = rest;
        Some(address)
    }
}

/// The address in the last element, and what is left of the comma before it. None if the element is no element, or
/// tells no address, or more than one.
fn element(line: &[u8]) -> Option<(IpAddr, Option<&[u8]>)> {
    let mut address = None;
    let mut rest = line.trim_ascii_end();
    let mut is_after_pair = false;
    loop {
        match rest.split_last() {
            None => return Some((address?, None)),
            Some((b',', before)) => return Some((address?, Some(before))),
            Some((b';', before)) => {
                rest = before;
                is_after_pair = false;
            }
            Some(_) if is_after_pair => return None,
            Some(_) => {
                let (name, value, before) = pair(rest)?;
                if name.eq_ignore_ascii_case(b"for") && address.replace(value.address()?).is_some() {
                    return None;
                }
                rest = before;
                is_after_pair = true;
            }
        }
        rest = rest.trim_ascii_end();
    }
}

enum Value<'a> {
    Token(&'a [u8]),
    /// What stands between the quotes.
    Quoted(&'a [u8]),
}

/// The last `name=value`, and what is left of it.
fn pair(rest: &[u8]) -> Option<(&[u8], Value<'_>, &[u8])> {
    let (value, rest) = if let Some(rest) = rest.strip_suffix(b"\"") {
        let (text, rest) = quoted(rest)?;
        (Value::Quoted(text), rest)
    } else {
        let (token, rest) = split_while(rest, is_in_value);
        (Value::Token(token), rest)
    };
    let (name, rest) = split_while(rest.strip_suffix(b"=")?, is_in_token);
    (!name.is_empty()).then_some((name, value, rest))
}

/// What stands between a quote and the one that was taken off the end, and what is left of it.
fn quoted(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_escaped = |position: usize| {
        let backslashes = rest[..position].iter().rev().take_while(|byte| **byte == b'\\').count();
        backslashes % 2 == 1
    };
    if is_escaped(rest.len()) {
        return None;
    }
    let open = (0..rest.len()).rev().find(|position| rest[*position] == b'"' && !is_escaped(*position))?;
    Some((&rest[open + 1..], &rest[..open]))
}

/// The longest end of which all bytes are such, and what is left of it.
fn split_while(text: &[u8], is_such: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let start = text.iter().rposition(|byte| !is_such(*byte)).map_or(0, |position| position + 1);
    (&text[start..], &text[..start])
}

/// `tchar` of RFC 9110.
fn is_in_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Addresses that should have been quoted, for their colons, often are not.
fn is_in_value(byte: u8) -> bool {
    is_in_token(byte) || b":[]".contains(&byte)
}

impl Value<'_> {
    fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Token(token) => node::address(token),
            Self::Quoted(text) if !text.contains(&b'\\') => node::address(text),
            Self::Quoted(text) => unescaped(text),
        }
    }
}

/// No address needs a backslash, but each of its characters may have one. One that is longer than an address can be is
/// none.
#[cold]
fn unescaped(text: &[u8]) -> Option<IpAddr> {
    let mut node = [0; 128];
    let mut len = 0;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        *node.get_mut(len)? = if *byte == b'\\' { *bytes.next()? } else { *byte };
        len += 1;
    }
    node::address(&node[..len])
}
