use super::{ExtractKey, Extracted};

/// One key for all requests: a limit for all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global;

impl<Request> ExtractKey<Request> for Global {
    type Key = ();

    fn extract(&self, _request: &Request) -> Extracted<()> {
        Extracted::Key(())
    }
}
