use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::event::Event;
use super::observer::Observer;

/// The registered observers, if any.
#[derive(Clone, Default)]
#[allow(unreachable_pub, reason = "named by a hidden trait method only")]
pub struct Observers(Option<Arc<Observed>>);

struct Observed {
    observer: Box<dyn Observer>,
    /// Whether [`Observers::warn_once`] has emitted its event.
    has_warned: AtomicBool,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer + 'static) {
        let observer: Box<dyn Observer> = match self.0.take() {
            None => Box::new(observer),
            Some(first) => Box::new(move |event: &Event<'_>| {
                first.observer.observe(event);
                observer.observe(event);
            }),
        };
        self.0 = Some(Arc::new(Observed { observer, has_warned: AtomicBool::new(false) }));
    }

    /// Tells of an event, which is made only if somebody listens.
    #[inline]
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observed) = &self.0 {
            tell(&*observed.observer, event);
        }
    }

    /// Whether anybody listens: where telling takes a measurement beforehand.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        self.0.is_some()
    }

    /// Emits `message` as a warning, unless these observers or clones of them have received one this way.
    ///
    /// `message` is called only until then. It returns `None` if there is nothing to warn of.
    pub(crate) fn warn_once(&self, message: impl FnOnce() -> Option<String>) {
        let Some(observed) = &self.0 else { return };
        if !observed.has_warned.load(Ordering::Relaxed)
            && let Some(message) = message()
            && !observed.has_warned.swap(true, Ordering::Relaxed)
        {
            self.tell(|| Event::Warning { message: &message });
        }
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
