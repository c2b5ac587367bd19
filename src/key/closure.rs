use std::hash::Hash;

use super::missing::MissingKey;
use super::{ExtractKey, Extracted};

// With the attribute the compiler reports the part of another extractor that does not fit, such as a predicate.
#[diagnostic::do_not_recommend]
impl<Request, F, R> ExtractKey<Request> for F
where
    F: Fn(&Request) -> R,
    R: IntoExtracted,
{
    type Key = R::Key;

    fn extract(&self, request: &Request) -> Extracted<R::Key> {
        self(request).into_extracted()
    }
}

/// A return type of closures that are extractors: `Option`, `Result` or [`Extracted`].
#[diagnostic::on_unimplemented(
    message = "a key extractor must return `Option<Key>`, `Result<Key, _>` or `Extracted<Key>`, not `{Self}`",
    note = "wrap the key in `Some(..)` if every request has one",
    note = "a key owns its data: `Some(text.to_owned())`, or `Some(KeyText::new(text))`, for a text of the request"
)]
pub trait IntoExtracted {
    /// The key type.
    type Key: Hash + Send + Sync + 'static;

    /// Converts the return value into the result of an extractor.
    fn into_extracted(self) -> Extracted<Self::Key>;
}

impl<K: Hash + Send + Sync + 'static> IntoExtracted for Extracted<K> {
    type Key = K;

    fn into_extracted(self) -> Self {
        self
    }
}

/// `None` is an absent key.
impl<K: Hash + Send + Sync + 'static> IntoExtracted for Option<K> {
    type Key = K;

    fn into_extracted(self) -> Extracted<K> {
        self.map_or_else(|| Extracted::Missing(MissingKey::from_request(NO_KEY)), Extracted::Key)
    }
}

/// `Err` is an unusable key, which the layer always rejects. The client does not receive the error. To send a reason,
/// return an [`Extracted::Missing`].
impl<K: Hash + Send + Sync + 'static, E> IntoExtracted for Result<K, E> {
    type Key = K;

    fn into_extracted(self) -> Extracted<K> {
        self.map_or_else(|_| Extracted::Missing(MissingKey::unusable(NO_KEY)), Extracted::Key)
    }
}

const NO_KEY: &str = "the request has no key";
