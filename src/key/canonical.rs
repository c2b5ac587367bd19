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

impl Default for Canonical {
    fn default() -> Self {
        Self::VERBATIM
    }
}

impl fmt::Debug for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "by a function" } else { "verbatim" })
    }
}

/// Defines the method `canonical` of an extractor with a field of this name. The rest of its documentation is an
/// argument.
macro_rules! canonical_setter {
    ($(#[$attribute:meta])*) => {
        /// Counts by the canonical form of the value, so that all spellings of one value have one key.
        ///
        /// `f` receives the value, and returns its canonical form: a `String`, a `Vec<u8>`, or an array of bytes. If
        /// `f` returns `None` or nothing, or if the value is not UTF-8, the key is unusable (status 400). `f` must
        /// accept every spelling that your application accepts.
        ///
        $(#[$attribute])*
        #[must_use]
        pub fn canonical<T: Into<Vec<u8>>>(mut self, f: impl Fn(&str) -> Option<T> + Send + Sync + 'static) -> Self {
            self.canonical = $crate::key::canonical::Canonical::new(f);
            self
        }
    };
}

pub(in crate::key) use canonical_setter;
