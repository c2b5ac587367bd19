use std::fmt::Debug;
use std::net::SocketAddr;

use http::{HeaderName, HeaderValue, Request};
use tower_ratelimit::key::Extracted;

pub(crate) type Get = Request<()>;

/// Builds a request from 192.0.2.1 with these lines of fields.
pub(crate) fn with(fields: &[(&'static str, &str)]) -> Get {
    let mut request = Get::default();
    for (name, value) in fields {
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a field value");
        request.headers_mut().append(HeaderName::from_static(name), value);
    }
    request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
    request
}

pub(crate) fn key<K: Debug>(extracted: Extracted<K>) -> K {
    match extracted {
        Extracted::Key(key) => key,
        other => panic!("{other:?}"),
    }
}

/// Returns the reason for the missing key, and whether it is a server error.
pub(crate) fn missing<K: Debug>(extracted: Extracted<K>) -> (String, bool) {
    let Extracted::Missing(missing) = extracted else { panic!("{extracted:?} is not missing") };
    (missing.reason().into_owned(), missing.is_server_error())
}
