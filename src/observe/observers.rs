use std::fmt;
use std::sync::Arc;

use super::event::Event;
use super::observer::Observer;

/// Whoever wants to be told, if anybody does.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer + 'static) {
        self.0 = Some(match self.0.take() {
            None => Arc::new(observer),
            Some(first) => Arc::new(move |event: &Event<'_>| {
                first.observe(event);
                observer.observe(event);
            }),
        });
    }

    /// Tells of an event, which is made only if somebody listens.
    #[inline]
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.0 {
            tell(&**observer, event);
        }
    }

    /// Whether anybody listens: where telling takes a measurement beforehand.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        self.0.is_some()
    }
}

/// Kept apart, so that the way of those whom nobody watches stays as short as it was.
#[cold]
#[inline(never)]
fn tell<'a>(observer: &dyn Observer, event: impl FnOnce() -> Event<'a>) {
    observer.observe(&event());
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.are_there() { "Observed" } else { "Unobserved" })
    }
}
