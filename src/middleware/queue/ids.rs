//! The queues in which requests of one key can wait.

/// The ids of the queues of a key's limits, and of the key itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueIds {
    ids: [u64; Self::MAX],
    len: usize,
}

impl QueueIds {
    const MAX: usize = 9;

    /// Creates the set with the queue of the key itself.
    pub(crate) fn new(own: u64) -> Self {
        let mut ids = [0; Self::MAX];
        ids[0] = own;
        Self { ids, len: 1 }
    }

    /// Adds the queue of a limit. Further limits than eight are left out: their requests wait in the key's own queue.
    pub(crate) fn push(&mut self, id: u64) {
        if let Some(free) = self.ids.get_mut(self.len) {
            *free = id;
            self.len += 1;
        }
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.iter().any(|known| known == id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ids[..self.len].iter().copied()
    }
}
