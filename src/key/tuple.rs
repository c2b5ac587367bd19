use std::net::IpAddr;

use super::{ExtractKey, Extracted};

// A missing part takes precedence over an exempt one, because omitting a header must not lift a limit. An unusable
// part takes precedence over an absent one, which the layer may forward.
macro_rules! tuple {
    ($($E:ident $part:ident),+) => {
        /// The tuple of the keys. The first unusable key is returned, otherwise the first missing one. Otherwise one
        /// exempt part makes the request exempt.
        impl<Request, $($E: ExtractKey<Request>),+> ExtractKey<Request> for ($($E,)+) {
            type Key = ($($E::Key,)+);

            fn extract(&self, request: &Request) -> Extracted<Self::Key> {
                let ($($part,)+) = self;
                let ($($part,)+) = ($($part.extract(request),)+);
                $(let $part = match $part {
                    Extracted::Missing(missing) if missing.is_unusable() => return Extracted::Missing(missing),
                    part => part,
                };)+
                $(let $part = match $part {
                    Extracted::Missing(missing) => return Extracted::Missing(missing),
                    Extracted::Key(key) => Some(key),
                    Extracted::Exempt => None,
                };)+
                match ($($part,)+) {
                    ($(Some($part),)+) => Extracted::Key(($($part,)+)),
                    _ => Extracted::Exempt,
                }
            }

            fn proxy(&self, request: &Request) -> Option<IpAddr> {
                let ($($part,)+) = self;
                None$(.or_else(|| $part.proxy(request)))+
            }
        }
    };
}

tuple!(A a, B b);
tuple!(A a, B b, C c);
tuple!(A a, B b, C c, D d);
