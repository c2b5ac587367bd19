//! The queues in which requests of one key can wait.

use std::hash::{BuildHasher as _, Hash};
use std::sync::OnceLock;

use foldhash::quality::RandomState;

use crate::limiter::{LimitOfKey, Limiter, LimitsOfKey};

/// The ids of the queues of a key's limits, and of the key itself.
#[derive(Clone, Debug)]
pub(crate) enum QueueIds {
    /// A layer that settles creates the set for each request: few ids need no allocation.
    Few {
        ids: [u64; Self::FEW],
        len: u8,
    },
    Many(Vec<u64>),
}

impl QueueIds {
    const FEW: usize = 9;

    /// Creates the set with the queue of the key itself.
    pub(crate) fn new(own: u64) -> Self {
        let mut ids = [0; Self::FEW];
        ids[0] = own;
        Self::Few { ids, len: 1 }
    }

    /// Creates the set of a key.
    pub(crate) fn of<Key: Hash>(key: &Key, limiter: &impl Limiter<Key>) -> Self {
        let mut ids = Self::new(hashers()[0].hash_one(key));
        visit_limits(key, limiter, &mut |limit| ids.push(limit.id));
        ids
    }

    /// Adds the queue of a limit.
    pub(crate) fn push(&mut self, id: u64) {
        match self {
            Self::Few { ids, len } => match ids.get_mut(usize::from(*len)) {
                Some(free) => {
                    *free = id;
                    *len += 1;
                }
                None => *self = Self::Many([&ids[..], &[id]].concat()),
            },
            Self::Many(ids) => ids.push(id),
        }
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        match self {
            Self::Few { ids, len } => &ids[..usize::from(*len)],
            Self::Many(ids) => ids,
        }
    }
}

/// The hash functions of the process: the layers on one limiter name its queues alike.
///
/// The first one finds queues. A class of requests has both, because a start must not reach another key.
pub(crate) fn hashers() -> &'static [RandomState; 2] {
    static HASHERS: OnceLock<[RandomState; 2]> = OnceLock::new();
    HASHERS.get_or_init(Default::default)
}

/// Visits the limits that apply to a key, with the ids of their queues.
pub(crate) fn visit_limits<Key>(key: &Key, limiter: &impl Limiter<Key>, visit: &mut dyn FnMut(LimitOfKey<'_>)) {
    limiter.limits_of(key, &mut LimitsOfKey::new(&hashers()[0], visit));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::QueueIds;

    #[test]
    fn set_keeps_any_number_of_ids_in_order() {
        for len in 1..40 {
            let mut ids = QueueIds::new(0);
            (1..len).for_each(|id| ids.push(id));
            assert_eq!(ids.as_slice(), (0..len).collect::<Vec<_>>());
        }
    }
}
