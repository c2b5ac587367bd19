//! The key and the limiter of a waiting request.

use std::any::TypeId;
use std::borrow::Borrow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ids::{limits_of_guard, visit_queues};
use super::queues::Queues;
use super::ticket::Ask;
use crate::decision::AcquireOptions;
use crate::limiter::{LimitOfKey, Limiter, LimiterFuture, LimitsOfKey, Outcome, limit_id};
use crate::observe::Observers;

/// The key and the limiter of a waiting request. `Q` owns a key of the type `K`.
pub(crate) struct KeyAsk<Q, K: ?Sized, L> {
    pub(crate) key: Q,
    limiter: L,
    observers: Observers,
    /// The queue of the key, for a denial that names no limit.
    own_queue: u64,
    /// Waits in its own queue only.
    is_alone: bool,
    of_key: PhantomData<fn(&K)>,
}

impl<Q, K, L> KeyAsk<Q, K, L>
where
    Q: Borrow<K> + Send + Sync + 'static,
    K: Hash + ?Sized + 'static,
    L: Limiter<K>,
{
    /// Creates the ask of a request of a layer, all of whose requests have one limiter.
    pub(crate) fn new(key: Q, limiter: L, observers: Observers) -> Self {
        let own_queue = limit_id(key.borrow());
        Self { key, limiter, observers, own_queue, is_alone: false, of_key: PhantomData }
    }

    /// Creates the ask of a caller that may have any limiter. Only a store's limits show whether two limiters are the same,
    /// so a caller with another limiter waits alone.
    #[cfg_attr(not(feature = "timer"), allow(dead_code, reason = "for callers that wait"))]
    pub(crate) fn of_caller(key: Q, limiter: L) -> Self {
        let mut is_alone = true;
        limiter.limits_of(key.borrow(), &mut LimitsOfKey::new(&mut |limit| is_alone &= !limit.is_of_store));
        let ask = Self::new(key, limiter, Observers::default());
        let own_queue = if is_alone { limit_id(("caller", Queues::next_number())) } else { ask.own_queue };
        Self { own_queue, is_alone, ..ask }
    }

    /// Returns the queue that a new request of the key must join, if others wait.
    #[cfg_attr(not(feature = "timer"), allow(dead_code, reason = "for callers that wait"))]
    pub(crate) fn existing_queue(&self, options: AcquireOptions, queues: &Queues) -> Option<u64> {
        existing_queue(self.own_queue, options, queues, &|visit| self.visit(visit))
    }

    /// Returns what distinguishes the key and the limiter from others in the queues of all callers. The type, because a part
    /// of a limiter may name no limits.
    #[cfg_attr(not(feature = "timer"), allow(dead_code, reason = "for callers that wait"))]
    pub(crate) fn identity(&self) -> (TypeId, u64, Vec<u64>) {
        let mut limits = Vec::new();
        self.visit(&mut |limit, _| limits.push(limit.id));
        (TypeId::of::<L>(), self.own_queue, limits)
    }
}

/// Returns the first queue that exists: the key's own queue, or the queue of a limit on which the request costs something.
pub(crate) fn existing_queue(
    own: u64,
    options: AcquireOptions,
    queues: &Queues,
    visit: &dyn Fn(&mut dyn FnMut(&LimitOfKey<'_>, u64)),
) -> Option<u64> {
    let mut found = Some(own).filter(|own| queues.exists(*own));
    visit(&mut |limit, queue| {
        if found.is_none() && limit.cost_of(options) > 0 && queues.exists(queue) {
            found = Some(queue);
        }
    });
    found
}

impl<Q, K, L> Ask for KeyAsk<Q, K, L>
where
    Q: Borrow<K> + Send + Sync + 'static,
    K: Hash + ?Sized + 'static,
    L: Limiter<K>,
{
    fn acquire(&self, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let acquired = self.limiter.acquire(self.key.borrow(), options);
        let holds = options.hold || options.keeps_guard;
        let limits = if holds { limits_of_guard(self.key.borrow(), &self.limiter) } else { None };
        acquired.map(|outcome| outcome.waking(|| limits))
    }

    fn visit(&self, visit: &mut dyn FnMut(&LimitOfKey<'_>, u64)) {
        if !self.is_alone {
            // Under the lock of the queue. If a function of a user panics here, it panics in the decision as well, which fails
            // this request.
            let visit = AssertUnwindSafe(|| visit_queues(self.key.borrow(), &self.limiter, visit));
            let _ = catch_unwind(visit);
        }
    }

    fn own_queue(&self) -> u64 {
        self.own_queue
    }

    fn observers(&self) -> &Observers {
        &self.observers
    }
}
