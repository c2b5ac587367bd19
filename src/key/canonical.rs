use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How an extractor converts the text of a credential into the bytes that it counts by.
#[derive(Clone)]
pub(in crate::key) struct Canonical(Option<Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>>);

impl Canonical {
    /// The bytes as they were sent.
    pub(in crate::key) const VERBATIM: Self = Self(None);

    pub(in crate::key) fn new<T: Into<Vec<u8>>>(f: impl Fn(&str) -> Option<T> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(move |text| f(text).map(Into::into))))
    }

    /// Returns the canonical form of a text, `None` if it has none.
    #[inline]
    pub(in crate::key) fn of<'a>(&self, text: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match &self.0 {
            None => Some(Cow::Borrowed(text)),
            Some(convert) => convert(str::from_utf8(text).ok()?).filter(|bytes| !bytes.is_empty()).map(Cow::Owned),
        }
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "by a function" } else { "verbatim" })
    }
}
