use std::any::type_name;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use http::Request;

use super::missing::MissingKey;
use super::{ExtractKey, Extracted};

/// A value from the request's extensions, such as the user that a login layer inserted.
///
/// If the extensions hold no such value, the server is [misconfigured](super::MissingKey::from_server): the layer that
/// inserts the value must be outside of the rate limiter.
///
/// ```
/// use tower_ratelimit::key::FromExtension;
///
/// #[derive(Clone, PartialEq, Eq, Hash)]
/// struct UserId(u64);
///
/// let key = FromExtension::<UserId>::new();
/// ```
pub struct FromExtension<T>(PhantomData<fn() -> T>);

impl<T> FromExtension<T> {
    /// Creates an extractor that reads the extension of type `T`.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Clone + Hash + Send + Sync + 'static, B> ExtractKey<Request<B>> for FromExtension<T> {
    type Key = T;

    fn extract(&self, request: &Request<B>) -> Extracted<T> {
        match request.extensions().get::<T>() {
            Some(value) => Extracted::Key(value.clone()),
            None => Extracted::Missing(MissingKey::from_server(format!(
                "request extension {} missing: no layer outside of the rate limiter has inserted it; add that layer after \
                 the rate limiter",
                type_name::<T>()
            ))),
        }
    }
}

impl_default!([T] FromExtension<T>);

impl<T> Clone for FromExtension<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for FromExtension<T> {}

impl<T> fmt::Debug for FromExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromExtension<{}>", type_name::<T>())
    }
}
