use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::part::{ADDRESS, PLAIN_PARTS, Part, ROUTE, USER};
use crate::key::{EncodeKey, Extracted, KeyText, KeyWriter, MissingKey};

/// The key of a request under limits that count by its parts: see [`RouteLimits`](super::RouteLimits).
///
/// It has the parts that the limits need for the request: [`RouteLimits::extractor`](super::RouteLimits::extractor) creates
/// it. For operations on a key, you can also create one with the parts by which the limit counts. An operation on a key
/// without one of these parts returns no error, and affects no request. The conditions of the limit need no parts:
///
#[cfg_attr(not(doctest), doc = include_str!("key.md"))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct RequestKey {
    plain: [Option<KeyText>; PLAIN_PARTS],
    named: Vec<(Arc<str>, KeyText)>,
}

impl RequestKey {
    /// Creates a key without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the address: the key that the extractor of the layer returns.
    pub fn with_address(mut self, address: &impl EncodeKey) -> Self {
        self.plain[ADDRESS] = Some(text_of(address));
        self
    }

    /// Sets the user: the key that the extractor of users returns.
    pub fn with_user(mut self, user: &impl EncodeKey) -> Self {
        self.plain[USER] = Some(text_of(user));
        self
    }

    /// Sets the route.
    pub fn with_route(mut self, route: &str) -> Self {
        self.plain[ROUTE] = Some(KeyText::from(route));
        self
    }

    fn get(&self, part: &Part) -> Option<&KeyText> {
        match self.plain.get(part.order()) {
            Some(plain) => plain.as_ref(),
            None => self.named.iter().find(|(name, _)| *name == part.name).map(|(_, value)| value),
        }
    }

    fn set(&mut self, part: &Part, value: KeyText) {
        match self.plain.get_mut(part.order()) {
            Some(plain) => *plain = Some(value),
            None => self.named.push((Arc::clone(&part.name), value)),
        }
    }

    /// Returns a part, which is read unless the key has it.
    fn get_or_read(&mut self, part: &Part, read: &mut impl FnMut(&Part) -> Extracted<KeyText>) -> Extracted<KeyText> {
        if let Some(value) = self.get(part) {
            return Extracted::Key(*value);
        }
        read(part).map(|value| {
            self.set(part, value);
            value
        })
    }
}

/// Returns the text of a key that a store would write.
pub(super) fn text_of(key: &impl EncodeKey) -> KeyText {
    KeyWriter::with_buffer(|writer| {
        key.encode(writer);
        KeyText::new(writer.as_str().as_bytes())
    })
}

/// By which parts a limit counts, and to which requests it applies.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) by: Vec<Part>,
    /// In the order of [`Part::order`].
    pub(super) when: Vec<Test>,
    pub(super) kept_free: Vec<Arc<KeptFree>>,
}

/// Units that a limit keeps free from requests that satisfy a condition.
#[derive(Debug)]
pub(super) struct KeptFree {
    pub(super) tests: Vec<Test>,
    pub(super) units: u64,
}

impl KeptFree {
    /// Returns whether a key satisfies the condition. A part that it lacks has none of the values.
    pub(super) fn applies(&self, key: &RequestKey) -> bool {
        self.tests.iter().all(|test| key.get(&test.part).map_or(test.is_negated, |value| test.holds(value)))
    }
}

/// A condition on one part.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) part: Part,
    pub(super) values: Vec<KeyText>,
    pub(super) is_negated: bool,
}

impl Test {
    fn holds(&self, value: &KeyText) -> bool {
        self.values.contains(value) != self.is_negated
    }
}

/// The maximum number of parts by which a limit counts.
pub(super) const MAX_BY: usize = 4;

/// The parts by which a limit counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SubKey {
    parts: [KeyText; MAX_BY],
    len: usize,
}

impl Rule {
    /// Reads the parts that the limit needs. A limit that applies needs all of them, and so does one of whose condition
    /// a part is missing, unless another part shows that the limit does not apply.
    pub(super) fn read(
        &self,
        key: &mut RequestKey,
        read: &mut impl FnMut(&Part) -> Extracted<KeyText>,
        missing: &mut Option<MissingKey>,
    ) -> Result<(), Exempt> {
        if !read_tests(&self.when, false, key, read, missing)? {
            return Ok(());
        }
        for kept_free in &self.kept_free {
            read_tests(&kept_free.tests, true, key, read, missing)?;
        }
        for part in &self.by {
            value_of(key.get_or_read(part, read), missing)?;
        }
        Ok(())
    }

    /// Returns whether the limit applies to a key.
    ///
    /// A part that the key lacks does not matter: the key is an application's, or of a request that was read before the
    /// limits were replaced, which must not pass without a limit.
    pub(super) fn applies(&self, key: &RequestKey) -> bool {
        self.when.iter().all(|test| key.get(&test.part).is_none_or(|value| test.holds(value)))
    }

    /// Returns the parts by which the limit counts. Keys that lack one of them share a count.
    pub(super) fn sub_key(&self, key: &RequestKey) -> SubKey {
        let mut parts = [KeyText::EMPTY; MAX_BY];
        for (value, part) in parts.iter_mut().zip(&self.by) {
            *value = key.get(part).copied().unwrap_or(KeyText::EMPTY);
        }
        SubKey { parts, len: self.by.len() }
    }
}

/// An extractor has exempted the request.
pub(super) struct Exempt;

/// Reads the parts of a condition. Returns whether it holds, unless a part is missing: then this part is noted, unless
/// another one shows that the condition does not hold. With `may_be_absent` a part that the client has not sent has none of
/// the values.
fn read_tests(
    tests: &[Test],
    may_be_absent: bool,
    key: &mut RequestKey,
    read: &mut impl FnMut(&Part) -> Extracted<KeyText>,
    missing: &mut Option<MissingKey>,
) -> Result<bool, Exempt> {
    let mut lacking = None;
    for test in tests {
        let holds = match key.get_or_read(&test.part, read) {
            Extracted::Missing(reason) if may_be_absent && !reason.is_unusable() && !reason.is_server_error() => {
                test.is_negated
            }
            read => value_of(read, &mut lacking)?.is_none_or(|value| test.holds(&value)),
        };
        if !holds {
            return Ok(false);
        }
    }
    if let Some(reason) = lacking {
        note(reason, missing);
    }
    Ok(true)
}

/// Returns a part that was read, or notes why it is missing.
fn value_of(read: Extracted<KeyText>, missing: &mut Option<MissingKey>) -> Result<Option<KeyText>, Exempt> {
    match read {
        Extracted::Key(value) => return Ok(Some(value)),
        Extracted::Missing(reason) => note(reason, missing),
        Extracted::Exempt => return Err(Exempt),
    }
    Ok(None)
}

/// Notes a reason, unless the known one decides: an unusable part is never exempt.
fn note(reason: MissingKey, missing: &mut Option<MissingKey>) {
    if missing.as_ref().is_none_or(|known| !known.is_unusable() && reason.is_unusable()) {
        *missing = Some(reason);
    }
}

impl SubKey {
    fn parts(&self) -> &[KeyText] {
        &self.parts[..self.len]
    }
}

impl Hash for SubKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl EncodeKey for SubKey {
    fn encode(&self, key: &mut KeyWriter) {
        self.parts().iter().for_each(|part| part.encode(key));
    }
}
