use super::{ExtractKey, Extracted};

// A missing part outweighs an exempt one: dropping a header must not lift a limit, whatever else the request says. An
// unusable part outweighs an absent one, which may be exempt or be replaced.
macro_rules! tuple {
    ($($E:ident $part:ident),+) => {
        /// The tuple of the keys. An unusable one makes the whole unusable, else a missing one makes the whole missing,
        /// else an exempt one makes the whole exempt.
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
        }
    };
}

tuple!(A a);
tuple!(A a, B b);
tuple!(A a, B b, C c);
tuple!(A a, B b, C c, D d);
