use crate::encode::{EncodeKey, KeyWriter};
use crate::key::{ExtractKey, Extracted, Fingerprinter};

/// What stands for a key where clients see it.
pub(super) type Hash = [u8; 16];

/// Says by which key a request's quota is counted: see [`Http::partition_key`](super::Http::partition_key).
pub trait Partition<Request> {
    /// A keyed hash of it, if it is to be told.
    fn of(&self, request: &Request) -> Option<[u8; 16]>;
}

/// It is not told.
impl<Request> Partition<Request> for () {
    fn of(&self, _request: &Request) -> Option<Hash> {
        None
    }
}

/// Tells keys by their hash under a pepper.
#[derive(Clone, Copy, Debug)]
pub struct PartitionBy<K, P> {
    key: K,
    pepper: P,
}

impl<K, P> PartitionBy<K, P> {
    pub(super) fn new(key: K, pepper: P) -> Self {
        Self { key, pepper }
    }
}

impl<Request, K, P> Partition<Request> for PartitionBy<K, P>
where
    K: ExtractKey<Request>,
    K::Key: EncodeKey,
    P: Fingerprinter,
{
    fn of(&self, request: &Request) -> Option<Hash> {
        let Extracted::Key(key) = self.key.extract(request) else { return None };
        let mut text = KeyWriter::new();
        key.encode(&mut text);
        Some(*self.pepper.fingerprint("pk", text.as_str().as_bytes()).as_bytes())
    }
}
