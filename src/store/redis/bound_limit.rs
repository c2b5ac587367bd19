use std::borrow::Borrow as _;
use std::cell::Cell;
use std::hash::Hasher;
use std::sync::Arc;

use super::script::{DynLuaAlgorithm, FixedAlgorithm, LimitInfo, OwnAlgorithm};
use crate::algorithm::{Algorithm, LuaAlgorithm};
use crate::encode::{EncodeKey, KeyWriter};
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::store::inner::with_scratch;

/// A limit on a part of keys of type `Key`.
pub(crate) trait RedisBoundLimit<Key: ?Sized>: Send + Sync {
    fn info(&self) -> LimitInfo;

    /// Returns whether the limit applies to a key. The other methods are for keys to which it does.
    fn applies_to(&self, key: &Key) -> bool;

    /// Returns the units that the limit keeps free from requests of a key, `None` if it keeps none free from any request.
    fn kept_free(&self, key: &Key) -> Option<u64>;

    /// Writes the sub-key by which the limit counts.
    fn encode(&self, key: &Key, writer: &mut KeyWriter);

    /// Returns the algorithm for a key, if the limit chooses it by the key.
    fn algorithm(&self, key: &Key) -> OwnAlgorithm;

    /// Feeds the sub-key to a hasher, and the parameters of the algorithm if the key chooses it.
    fn hash(&self, key: &Key, hasher: &mut dyn Hasher);

    /// Returns how many requests may wait, if the limit bounds that.
    fn max_waiting(&self, key: &Key) -> Option<u64>;
}

pub(crate) struct BoundLimit<C, P>(pub(crate) Arc<Limit<C, P>>);

impl<Key, C, P> RedisBoundLimit<Key> for BoundLimit<C, P>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    C::Algorithm: LuaAlgorithm,
    P: SubKeyOf<Key>,
    P::SubKey: EncodeKey,
{
    fn info(&self) -> LimitInfo {
        let fixed_algorithm = || Arc::<Limit<C, P>>::clone(&self.0) as Arc<dyn FixedAlgorithm>;
        LimitInfo {
            facts: self.0.facts::<Key>(),
            script: <C::Algorithm as LuaAlgorithm>::SCRIPT,
            held_until_end: C::Algorithm::HELD_UNTIL_END,
            is_global: self.0.sub_key().facts().is_constant,
            warn_keys: self.0.warn_keys().cloned(),
            fixed_algorithm: self.0.algorithm().fixed().is_some().then(fixed_algorithm),
        }
    }

    fn applies_to(&self, key: &Key) -> bool {
        self.0.sub_key().applies_to(key)
    }

    fn kept_free(&self, key: &Key) -> Option<u64> {
        self.0.sub_key().kept_free(key)
    }

    fn encode(&self, key: &Key, writer: &mut KeyWriter) {
        self.0.sub_key().with_sub_key(key, |part| part.encode(writer));
    }

    fn algorithm(&self, key: &Key) -> OwnAlgorithm {
        self.0.algorithm().select_owned(key).map(|algorithm| Arc::new(algorithm) as Arc<dyn DynLuaAlgorithm>)
    }

    fn hash(&self, key: &Key, hasher: &mut dyn Hasher) {
        self.0.sub_key().with_sub_key(key, |part| part.hash_key(hasher));
        if self.0.algorithm().fixed().is_none() {
            thread_local! {
                static PARAMS: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
            }
            with_scratch(&PARAMS, |params| {
                params.clear();
                LuaAlgorithm::params(self.0.algorithm().select(key).borrow(), 0, params);
                for param in params {
                    hasher.write_u64(*param);
                }
            });
        }
    }

    fn max_waiting(&self, key: &Key) -> Option<u64> {
        self.0.algorithm().select(key).borrow().max_waiting()
    }
}

impl<C, P> FixedAlgorithm for Limit<C, P>
where
    C: AlgorithmSelector,
    C::Algorithm: LuaAlgorithm,
    P: Send + Sync,
{
    fn fixed_algorithm(&self) -> &dyn DynLuaAlgorithm {
        self.algorithm().fixed().expect("`info` names only limits with a fixed algorithm")
    }
}
