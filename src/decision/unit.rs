use std::borrow::Cow;
use std::sync::OnceLock;

/// The number of a unit's name in this process, from 1.
///
/// The names of units come from the program and its configuration, never from clients, so they are few, and are kept for
/// the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit(pub(super) u8);

/// The names by their numbers. They are never removed.
static NAMES: [OnceLock<&'static str>; 254] = [const { OnceLock::new() }; 254];

impl Unit {
    /// In the place of a unit for which there is no number, or no word in the costs.
    pub(crate) const TOO_MANY: Self = Self(u8::MAX);

    /// Returns the unit with this name.
    pub(crate) fn named(name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        let leak = || match &name {
            Cow::Borrowed(name) => name,
            Cow::Owned(name) => &*Box::leak(name.clone().into_boxed_str()),
        };
        let index = NAMES.iter().position(|known| *known.get_or_init(leak) == name);
        index.and_then(|index| u8::try_from(index + 1).ok()).map_or(Self::TOO_MANY, Self)
    }

    pub(crate) fn name(self) -> &'static str {
        let name = NAMES.get(usize::from(self.0).wrapping_sub(1)).and_then(OnceLock::get);
        name.copied().unwrap_or("too many units")
    }
}
