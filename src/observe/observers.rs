use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::event::Event;
use super::observer::Observer;

/// The registered observers, if any.
#[derive(Clone, Default)]
#[allow(unreachable_pub, reason = "named by a hidden trait method only")]
pub struct Observers(Option<Arc<Registered>>);

struct Registered {
    observer: Box<dyn Observer>,
    /// The kinds of warnings that [`Observers::warn_once`] has emitted: a bit for each.
    warned: AtomicU8,
}

/// A kind of warnings, of which a layer emits one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WarningKind {
    /// A response lists two limits of one name.
    RepeatedLimitName = 1,
    /// Requests are exempt because the server is misconfigured, so that none of them can have a key.
    ExemptByMisconfiguration = 2,
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
        self.0 = Some(Arc::new(Registered { observer, warned: AtomicU8::new(0) }));
    }

    /// Emits an event. `event` is called only if there is an observer.
    #[inline]
    pub(crate) fn emit<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(registered) = &self.0 {
            emit(&*registered.observer, event);
        }
    }

    /// Whether there is an observer, for callers that would have to measure a time for an event.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Emits `message` as a warning, unless these observers or clones of them have received one of this kind.
    ///
    /// `message` is not called after the first warning. It returns `None` if there is nothing to warn of.
    pub(crate) fn warn_once(&self, kind: WarningKind, message: impl FnOnce() -> Option<String>) {
        let Some(registered) = &self.0 else { return };
        let bit = kind as u8;
        if registered.warned.load(Ordering::Relaxed) & bit == 0
            && let Some(message) = message()
            && registered.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.emit(|| Event::Warning { message: &message });
        }
    }
}

/// Out of line, so that callers without observers inline one comparison only.
#[cold]
#[inline(never)]
fn emit<'a>(observer: &dyn Observer, event: impl FnOnce() -> Event<'a>) {
    let event = event();
    observer.observe(&event);
    if let Event::Decided { decision, .. } = event {
        for status in decision.limits().iter().filter(|status| status.is_uncounted()) {
            observer.observe(&Event::ShadowUncounted { limit: status.name() });
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Observed" } else { "Unobserved" })
    }
}
