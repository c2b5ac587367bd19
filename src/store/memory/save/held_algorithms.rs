use std::collections::HashMap;
use std::sync::PoisonError;

use crate::store::inner::{
    sync::{Mutex, MutexGuard},
    table::LockToken,
};

/// The algorithms of keys with held costs, if the algorithm is chosen by the key: a save charges these costs, and has no
/// key to choose by.
pub(in crate::store::memory) struct HeldAlgorithms<A>(Mutex<HashMap<u64, A>>);

impl<A> Default for HeldAlgorithms<A> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<A> HeldAlgorithms<A> {
    /// Stores the algorithm of a key's latest hold.
    pub(in crate::store::memory) fn set(&self, fingerprint: u64, algorithm: A, _: &LockToken) {
        self.lock().insert(fingerprint, algorithm);
    }

    /// Removes the algorithm of a key whose last hold has ended.
    pub(in crate::store::memory) fn remove(&self, fingerprint: u64, _: &LockToken) {
        self.lock().remove(&fingerprint);
    }

    /// Runs `f` on the algorithm of a key, if the key has a hold.
    pub(super) fn with<R>(&self, fingerprint: u64, f: impl FnOnce(&A) -> R) -> Option<R> {
        self.lock().get(&fingerprint).map(f)
    }

    /// Returns about how many bytes the algorithms take.
    pub(in crate::store::memory) fn bytes(&self) -> usize {
        self.lock().capacity() * (size_of::<(u64, A)>() + 1)
    }

    pub(in crate::store::memory) fn lock(&self) -> MutexGuard<'_, HashMap<u64, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
