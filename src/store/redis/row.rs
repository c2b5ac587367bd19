use std::sync::Arc;

use super::twin::Twin;
use crate::algorithm::{LuaAlgorithm, LuaScript};
use crate::decision::Name;
use crate::encode::{EncodeKey, KeyWriter};
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};

/// What a limit is, whatever its keys are.
#[derive(Clone)]
pub(super) struct RowInfo {
    pub(super) name: Name,
    pub(super) kernel: LuaScript,
    pub(super) shadow: bool,
    /// It is known to count all keys together.
    pub(super) of_all: bool,
    /// The algorithm, if it is the same one for all keys.
    pub(super) fixed: Option<Arc<dyn Fixed>>,
}

impl RowInfo {
    /// The algorithm for a key: its own, or the one for all keys.
    pub(super) fn twin<'a>(&'a self, own: Option<&'a Arc<dyn Twin>>) -> Option<&'a dyn Twin> {
        own.map(|own| &**own).or_else(|| self.fixed.as_deref().map(Fixed::twin))
    }
}

/// Has one algorithm for all keys.
pub(super) trait Fixed: Send + Sync {
    fn twin(&self) -> &dyn Twin;
}

/// A limit on a part of keys of type `Key`.
pub(super) trait Row<Key: ?Sized>: Send + Sync {
    fn info(&self) -> RowInfo;

    /// Writes the part that it counts by.
    fn encode(&self, key: &Key, writer: &mut KeyWriter);

    /// The algorithm for a key, where it is not the same one for all.
    fn twin(&self, key: &Key) -> Option<Arc<dyn Twin>>;
}

pub(super) struct BoundLimit<C, P>(pub(super) Arc<Limit<C, P>>);

/// The algorithm of a limit that has one for all keys.
struct SameForAll<C, P>(Arc<Limit<C, P>>);

impl<Key, C, P> Row<Key> for BoundLimit<C, P>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key> + Send + Sync + 'static,
    C::Algorithm: LuaAlgorithm,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::SubKey: EncodeKey,
{
    fn info(&self) -> RowInfo {
        let kernel = <C::Algorithm as LuaAlgorithm>::SCRIPT;
        let fixed =
            self.0.algorithm().fixed().is_some().then(|| Arc::new(SameForAll(Arc::clone(&self.0))) as Arc<dyn Fixed>);
        let of_all = self.0.sub_key().is_constant();
        RowInfo { name: self.0.name_handle().clone(), kernel, shadow: self.0.is_shadow(), of_all, fixed }
    }

    fn encode(&self, key: &Key, writer: &mut KeyWriter) {
        self.0.sub_key().with_sub_key(key, |part| part.encode(writer));
    }

    fn twin(&self, key: &Key) -> Option<Arc<dyn Twin>> {
        self.0.algorithm().select_owned(key).map(|algorithm| Arc::new(algorithm) as Arc<dyn Twin>)
    }
}

impl<C, P> Fixed for SameForAll<C, P>
where
    C: AlgorithmSelector + Send + Sync,
    C::Algorithm: LuaAlgorithm,
    P: Send + Sync,
{
    fn twin(&self) -> &dyn Twin {
        self.0.algorithm().fixed().expect("it is made only for those")
    }
}
