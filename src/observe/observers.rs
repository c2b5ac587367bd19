use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::event::Event;
use super::observer::Observer;
use crate::decision::{Costs, NearLimit};

/// The registered observers, if any.
#[derive(Clone, Default)]
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
    /// The costs that settle a request have a unit that no limit names.
    UnknownUnit = 4,
    /// `Escalating` cannot count denials.
    FailedEscalation = 8,
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

    /// Emits an event in a task that carries the calls of many requests: a panic of the observer ends here.
    #[cfg(feature = "redis")]
    pub(crate) fn emit_in_task<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        // The panic hook has reported the panic.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.emit(event)));
    }

    /// Emits an event for the cost without a unit, and one for each unit.
    #[inline]
    pub(crate) fn emit_settled(&self, held: Costs, actual: Costs) {
        let number = held.number().unwrap_or(0);
        self.emit(|| Event::settled(None, number, actual.number().unwrap_or(number)));
        if self.is_some() && !(held.unit_costs().is_none() && actual.unit_costs().is_none()) {
            // A unit that is settled, and was not held, is a surcharge.
            for (unit, _) in held.plus(actual).units() {
                self.emit(|| Event::settled(Some(unit), held.of(unit), actual.of(unit)));
            }
        }
    }

    /// Whether there is an observer, for callers that would have to measure a time for an event.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Whether somebody can receive a warning: an observer, or the developer of a debug build.
    #[inline]
    pub(crate) fn can_warn(&self) -> bool {
        cfg!(debug_assertions) || self.is_some()
    }

    /// Emits `message` as a warning. Without an observer, a debug build prints it on the standard error, once.
    pub(crate) fn warn(&self, message: &str) {
        if self.is_some() {
            self.emit(|| Event::Warning { message });
        } else if cfg!(debug_assertions) {
            print_once(message);
        }
    }

    /// Emits `message` as a warning, unless these observers or clones of them have received one of this kind.
    ///
    /// `message` is not called after the first warning. It returns `None` if there is nothing to warn of.
    pub(crate) fn warn_once(&self, kind: WarningKind, message: impl FnOnce() -> Option<String>) {
        let Some(registered) = &self.0 else { return };
        let bit = kind as u8;
        // Once warned, no message is looked for. Of threads that find one at the same time, the first to set the bit
        // emits it.
        if registered.warned.load(Ordering::Relaxed) & bit == 0
            && let Some(message) = message()
            && registered.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.emit(|| Event::Warning { message: &message });
        }
    }
}

/// Prints a message for the developer, unless this process has printed the message before.
fn print_once(message: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    const MAX_PRINTED: usize = 16;

    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.len() < MAX_PRINTED && printed.insert(message.to_owned()) {
        eprintln!("tower-ratelimit: {message} (printed in debug builds only: observers receive such warnings)");
    }
}

/// Out of line, so that callers without observers inline one comparison only.
#[cold]
#[inline(never)]
fn emit<'a>(observer: &dyn Observer, event: impl FnOnce() -> Event<'a>) {
    deliver(observer, &event());
}

/// Apart from [`emit`], which the compiler generates for each type of a layer.
fn deliver(observer: &dyn Observer, event: &Event<'_>) {
    observer.observe(event);
    if let Event::Decided { decision, .. } = event {
        for status in decision.limits().iter().filter(|status| status.is_uncounted()) {
            observer.observe(&Event::ShadowUncounted { limit: status.name() });
        }
        for status in decision.limits().iter().filter(|status| status.near().has(NearLimit::EVENT)) {
            observer.observe(&Event::NearLimit { limit: status.name() });
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Observed" } else { "Unobserved" })
    }
}
