use std::net::IpAddr;

use super::node;

/// An iterator over the addresses in a line of `Forwarded` (RFC 7239), from right to left.
///
/// An element without an address yields `None` and ends the iteration. The iterator parses from the right, because
/// trusted proxies write the right end: an unterminated quote of a client, left of it, cannot hide their elements. A
/// well-formed element parses the same from both ends: within a quoted string, a quote follows an odd number of
/// backslashes, and the opening quote follows a `=`.
pub(super) struct ForwardedElements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> ForwardedElements<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: Some(line) }
    }
}

impl Iterator for ForwardedElements<'_> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Option<IpAddr>> {
        let (address, rest) = match last_element(self.rest?) {
            Some((address, rest)) => (Some(address), rest),
            None => (None, None),
        };
        self.rest = rest;
        Some(address)
    }
}

/// Returns the address in the last element, and the text before the comma that precedes the element.
///
/// `None` if the element is malformed, or contains no address or several addresses.
fn last_element(line: &[u8]) -> Option<(IpAddr, Option<&[u8]>)> {
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
                let (name, value, before) = last_pair(rest)?;
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
    /// The text between the quotes.
    Quoted(&'a [u8]),
}

/// Returns the last `name=value`, and the text before it.
fn last_pair(rest: &[u8]) -> Option<(&[u8], Value<'_>, &[u8])> {
    let (value, rest) = if let Some(rest) = rest.strip_suffix(b"\"") {
        let (text, rest) = quoted(rest)?;
        (Value::Quoted(text), rest)
    } else {
        let (token, rest) = split_suffix(rest, is_in_value);
        (Value::Token(token), rest)
    };
    let (name, rest) = split_suffix(rest.strip_suffix(b"=")?, is_in_token);
    (!name.is_empty()).then_some((name, value, rest))
}

/// Returns the text of a quoted string whose closing quote is stripped, and the text before its opening quote.
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

/// Splits off the longest suffix of matching bytes: returns the suffix, and the text before it.
fn split_suffix(text: &[u8], matches: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let start = text.iter().rposition(|byte| !matches(*byte)).map_or(0, |position| position + 1);
    (&text[start..], &text[..start])
}

/// `tchar` of RFC 9110.
fn is_in_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Proxies often omit the quotes that an address with colons requires.
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

/// Parses an address with escapes: no address needs one, but RFC 7239 allows an escape for each character.
///
/// The buffer is longer than any address.
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
