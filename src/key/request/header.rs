use http::{HeaderMap, HeaderName, Request};

use crate::key::KeyText;
use crate::key::MissingKey;
use crate::key::{ExtractKey, Extracted};

/// The value of one header field.
///
/// The key is absent if the field is. The key is unusable if the field is empty or comes more than once: the client
/// could choose which of the values counts. White space around the value does not count.
///
/// Whoever can set the field chooses the key. Use it for what an outer layer or a proxy has checked, or where a made-up
/// value gains nothing.
///
/// ```
/// use tower_ratelimit::key::Header;
///
/// const TENANT: Header = Header::from_static("x-tenant");
/// ```
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Reads the field with this name.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// Reads the field with this name.
    ///
    /// # Panics
    ///
    /// If the name is not a field name in lower case. In a `const` the compiler shows the panic.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl<B> ExtractKey<Request<B>> for Header {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        match only_value(request.headers(), &self.0) {
            Ok(value) => Extracted::Key(KeyText::new(value)),
            Err(missing) => Extracted::Missing(missing),
        }
    }
}

/// The value of a field that comes once and is not empty, without the white space around it, which HTTP/2 servers keep.
pub(in crate::key) fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], MissingKey> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
        (Some([]), None) => Err(MissingKey::unusable_field(name, "is empty")),
        (Some(value), None) => Ok(value),
        (Some(_), Some(_)) => Err(MissingKey::unusable_field(name, "comes more than once")),
        (None, _) => Err(MissingKey::absent_field(name, "is missing")),
    }
}
