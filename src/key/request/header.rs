use http::{HeaderMap, HeaderName, Request};

use crate::key::canonical::Canonical;
use crate::key::{ExtractKey, Extracted, KeyText, MissingKey};

/// The value of a header.
///
/// The key is absent if the header is missing. The key is unusable if the header is empty or repeated. White space
/// around the value is ignored.
///
/// The client chooses the key. Use this extractor for a header that an outer layer or a proxy checks, or if an
/// invented value gains nothing.
///
/// # Spellings
///
/// The extractor compares bytes. If your application accepts several spellings of one value (a tenant in upper and lower case), each spelling
/// has a separate limit. Then count by the value that your application has parsed: an [extension](crate::key::FromExtension)
/// or a [lookup](crate::key::LookupLayer). Or convert the spellings with [`canonical`](Self::canonical).
///
/// ```
/// use tower_ratelimit::key::Header;
///
/// const TENANT: Header = Header::from_static("x-tenant");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Header {
    name: HeaderName,
    canonical: Canonical,
}

impl Header {
    /// Creates an extractor that reads the header `name`.
    pub const fn new(name: HeaderName) -> Self {
        Self { name, canonical: Canonical::VERBATIM }
    }

    /// Creates an extractor that reads the header `name`.
    ///
    /// # Panics
    ///
    /// If `name` is not a header name in lower case. In a `const`, the panic is a compile error.
    pub const fn from_static(name: &'static str) -> Self {
        Self::new(lower_case_name(name))
    }

    /// Counts by the canonical form of the value, so that all spellings of one value have one key.
    ///
    /// The key is [`KeyText::new`] of the canonical form. When a value has none, says
    /// [`Credential::canonical`](crate::key::Credential::canonical).
    ///
    /// ```
    /// use tower_ratelimit::key::Header;
    ///
    /// // If your application compares tenants without regard to case.
    /// let key = Header::from_static("x-tenant").canonical(|tenant| Some(tenant.to_lowercase()));
    /// ```
    pub fn canonical<T: Into<Vec<u8>>>(mut self, f: impl Fn(&str) -> Option<T> + Send + Sync + 'static) -> Self {
        self.canonical = Canonical::new(f);
        self
    }
}

/// Returns the name of a header field in lower case. Panics with the remedy if the name is another text.
pub(in crate::key) const fn lower_case_name(name: &'static str) -> HeaderName {
    let bytes = name.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        assert!(
            !bytes[index].is_ascii_uppercase(),
            "invalid name of a header field: it has an upper case letter; write it in lower case, as in \"x-api-key\""
        );
        index += 1;
    }
    HeaderName::from_static(name)
}

impl<B> ExtractKey<Request<B>> for Header {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        let found = only_value(request.headers(), &self.name).and_then(|value| {
            let value = self.canonical.of(value);
            Ok(KeyText::new(&value.ok_or_else(|| MissingKey::unusable_header(&self.name, "is malformed"))?))
        });
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

/// Returns the trimmed value of a header that is neither empty nor repeated.
///
/// HTTP/2 servers do not trim values.
pub(in crate::key) fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], MissingKey> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
        (Some([]), None) => Err(MissingKey::unusable_header(name, "is empty")),
        (Some(value), None) => Ok(value),
        (Some(_), Some(_)) => Err(MissingKey::unusable_header(name, "is repeated")),
        (None, _) => Err(MissingKey::absent_header(name, "is missing")),
    }
}
