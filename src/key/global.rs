use super::{ExtractKey, Extracted};

/// One key for all requests: a limit for all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global;

impl Global {
    /// Creates an extractor of one key for all requests: the same as the value `Global`.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<Request> ExtractKey<Request> for Global {
    type Key = ();

    fn extract(&self, _request: &Request) -> Extracted<()> {
        Extracted::Key(())
    }
}
