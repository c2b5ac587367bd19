use std::borrow::Cow;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// The number of a unit's name in this process, from 1.
///
/// The names of units come from the program and its configuration, never from clients, so they are few, and are kept for
/// the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit(pub(super) u8);

static NAMES: LazyLock<ArcSwap<Vec<&'static str>>> = LazyLock::new(ArcSwap::default);

impl Unit {
    /// In the place of a unit for which there is no number, or no word in the costs.
    pub(crate) const TOO_MANY: Self = Self(u8::MAX);

    /// Returns the unit with this name.
    pub(crate) fn named(name: Cow<'static, str>) -> Self {
        Self::find(&NAMES.load(), &name).unwrap_or_else(|| Self::insert(name))
    }

    fn find(names: &[&'static str], name: &str) -> Option<Self> {
        let index = names.iter().position(|known| *known == name)?;
        u8::try_from(index + 1).ok().map(Self)
    }

    #[cold]
    fn insert(name: Cow<'static, str>) -> Self {
        static WRITER: Mutex<()> = Mutex::new(());
        let _one = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = NAMES.load().to_vec();
        if let Some(known) = Self::find(&names, &name) {
            return known;
        }
        let number = u8::try_from(names.len() + 1).unwrap_or(u8::MAX);
        if number == u8::MAX {
            return Self::TOO_MANY;
        }
        names.push(match name {
            Cow::Borrowed(name) => name,
            Cow::Owned(name) => Box::leak(name.into_boxed_str()),
        });
        NAMES.store(Arc::new(names));
        Self(number)
    }

    pub(crate) fn name(self) -> &'static str {
        NAMES.load().get(usize::from(self.0).wrapping_sub(1)).copied().unwrap_or("too many units")
    }
}
