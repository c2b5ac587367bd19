use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

/// The bounds on memory for bodies, and the memory in use. Clones share the latter.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(super) max_bytes: usize,
    pub(super) max_bytes_per_request: usize,
    used: Arc<AtomicUsize>,
}

impl Bounds {
    const DEFAULT_MAX_BYTES: usize = 64 << 20;
    const DEFAULT_MAX_BYTES_PER_REQUEST: usize = 64 << 10;

    /// Creates bounds with no memory in use.
    pub(crate) fn new(max_bytes_per_request: usize, max_bytes: usize) -> Self {
        Self { max_bytes, max_bytes_per_request, used: Arc::new(AtomicUsize::new(0)) }
    }

    pub(super) fn used(&self) -> usize {
        // Relaxed: the sum orders no other access, and the bound may be exceeded by a frame for each thread.
        self.used.load(Ordering::Relaxed)
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX_BYTES_PER_REQUEST, Self::DEFAULT_MAX_BYTES)
    }
}

/// The memory of one request. Dropping it returns the memory.
pub(super) struct MemoryUse {
    bounds: Bounds,
    bytes: usize,
}

impl MemoryUse {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self { bounds: bounds.clone(), bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= self.bounds.max_bytes_per_request || self.bounds.used() >= self.bounds.max_bytes
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.bounds.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.bounds.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for MemoryUse {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}
