use std::sync::Arc;

use crate::algorithm::{LuaAlgorithm, LuaScript};
use crate::decision::Name;
use crate::encode::{EncodeKey, KeyWriter};
use crate::limit::{Choose, Chooser, Limit, SubKeyOf};
use crate::store::redis::script::replay::Twin;

/// What a limit is, whatever its keys are.
#[derive(Clone)]
pub(crate) struct RowInfo {
    pub(crate) name: Name,
    pub(crate) kernel: LuaScript,
    pub(crate) shadow: bool,
    /// It is known to count all keys together.
    pub(crate) of_all: bool,
    /// The algorithm, if it is the same one for all keys.
    pub(crate) fixed: Option<Arc<dyn Fixed>>,
}

impl RowInfo {
    /// The algorithm for a key: its own, or the one for all keys.
    pub(crate) fn twin<'a>(&'a self, own: Option<&'a Arc<dyn Twin>>) -> Option<&'a dyn Twin> {
        own.map(|own| &**own).or_else(|| self.fixed.as_deref().map(Fixed::twin))
    }
}

/// Has one algorithm for all keys.
pub(crate) trait Fixed: Send + Sync {
    fn twin(&self) -> &dyn Twin;
}

/// A limit on a part of keys of type `Key`.
pub(crate) trait Row<Key: ?Sized>: Send + Sync {
    fn info(&self) -> RowInfo;

    /// Writes the part that it counts by.
    fn encode(&self, key: &Key, writer: &mut KeyWriter);

    /// The algorithm for a key, where it is not the same one for all.
    fn twin(&self, key: &Key) -> Option<Arc<dyn Twin>>;
}

pub(crate) struct BoundLimit<C, P>(pub(crate) Arc<Limit<C, P>>);

/// The algorithm of a limit that has one for all keys.
struct SameForAll<C, P>(Arc<Limit<C, P>>);

impl<Key, C, P> Row<Key> for BoundLimit<C, P>
where
    Key: ?Sized,
    C: Choose<Key> + Send + Sync + 'static,
    C::Algorithm: LuaAlgorithm,
    P: SubKeyOf<Key> + Send + Sync + 'static,
    P::Part: EncodeKey,
{
    fn info(&self) -> RowInfo {
        let kernel = <C::Algorithm as LuaAlgorithm>::SCRIPT;
        let fixed =
            self.0.algorithm().fixed().is_some().then(|| Arc::new(SameForAll(Arc::clone(&self.0))) as Arc<dyn Fixed>);
        let of_all = self.0.part().is_constant();
        RowInfo { name: self.0.name_handle().clone(), kernel, shadow: self.0.is_shadow(), of_all, fixed }
    }

    fn encode(&self, key: &Key, writer: &mut KeyWriter) {
        self.0.part().with_sub_key(key, |part| part.encode(writer));
    }

    fn twin(&self, key: &Key) -> Option<Arc<dyn Twin>> {
        self.0.algorithm().select_owned(key).map(|algorithm| Arc::new(algorithm) as Arc<dyn Twin>)
    }
}

impl<C, P> Fixed for SameForAll<C, P>
where
    C: Chooser + Send + Sync,
    C::Algorithm: LuaAlgorithm,
    P: Send + Sync,
{
    fn twin(&self) -> &dyn Twin {
        self.0.algorithm().fixed().expect("it is made only for those")
    }
}
