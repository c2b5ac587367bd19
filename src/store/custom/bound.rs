//! One limit with the algorithm for a key, without the types of the algorithm and of the sub-key.

use std::sync::Arc;
use std::time::Duration;

use super::layout::{Block, MAX_HITS, MAX_STATE_BYTES, Stored, VERSION};
use super::transaction::StoreWrite;
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, BlockReason, LimitStatus};
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::store::inner::{
    AlgorithmExt as _, LimitNumbers, LimitOfKey, LimitReading, Name, Plan, ReadMode, Shares, Transition, hash_if_long,
    limit_id,
};

/// A limit on keys of type `Key`.
pub(super) trait AnyLimit<Key: ?Sized>: Send + Sync {
    /// Sets the part of the limit in the guaranteed shares of its limiter.
    fn set_shares(&mut self, shares: Option<Shares>);

    /// Returns an error if a store of bytes cannot keep the limit's states.
    fn check(&self) -> Result<(), Error>;

    /// Selects the algorithm for a key.
    fn bind(&self, key: &Key) -> Result<Box<dyn AnyBoundLimit>, Error>;

    /// Returns the key of the state, `None` if the limit does not apply to the key.
    fn state_key(&self, key: &Key) -> Option<String>;

    /// Names the limit, unless it is a shadow or does not apply.
    fn name_limit(&self, key: &Key, limits: &mut LimitsOfKey<'_>);
}

/// What the store has read for one limit, and the request.
#[derive(Clone, Copy)]
pub(super) struct KeyState<'a> {
    pub(super) stored: Option<&'a [u8]>,
    pub(super) now: Timestamp,
    pub(super) options: AcquireOptions,
}

/// A limit with the algorithm for one key.
pub(super) trait AnyBoundLimit: Send + Sync {
    fn name(&self) -> &Name;

    /// Decides on a state, without the other limits.
    fn read(&self, state: KeyState<'_>, mode: ReadMode) -> Result<LimitReading, Error>;

    /// Charges the cost of the reading for a start after `delay`. Returns the numbers after the charge as well.
    fn charge(
        &self,
        state: KeyState<'_>,
        delay: Duration,
        reading: &LimitReading,
    ) -> Result<(StoreWrite, LimitNumbers), Error>;

    /// Returns the state after a charge of `used` on a never-seen key. A block stays.
    fn set_usage(&self, state: KeyState<'_>, used: u64) -> Result<StoreWrite, Error>;

    /// Returns the state with another end of the block.
    fn block(&self, state: KeyState<'_>, until: Timestamp, reason: BlockReason) -> Result<StoreWrite, Error>;

    /// Returns the limit's part of the decision, with the numbers after it.
    fn status(&self, plan: &Plan, reading: &LimitReading, numbers: LimitNumbers) -> LimitStatus;
}

impl<Key, C, P> AnyLimit<Key> for Arc<Limit<C, P>>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: EncodeKey,
{
    fn set_shares(&mut self, shares: Option<Shares>) {
        let (cost, limit) = (self.cost(), Self::get_mut(self).expect("a limit is shared only after it was built"));
        limit.share.place(shares, cost);
    }

    fn check(&self) -> Result<(), Error> {
        let name = Limit::name(self);
        if C::Algorithm::HELD_UNTIL_END {
            return Err(Error::config(format!(
                "limit {name:?}: a store of your own cannot count requests in flight, because it holds no costs; use \
                 `Memory` or `Redis` for this limit, and combine the limiters with `Chained`"
            )));
        }
        if C::Algorithm::STATE_NAME.is_empty() {
            return Err(Error::config(format!(
                "limit {name:?}: its algorithm has no name for states in a store of your own; set \
                 `Algorithm::STATE_NAME`"
            )));
        }
        self.algorithm().fixed().map_or(Ok(()), |algorithm| check_size(name, algorithm))
    }

    fn bind(&self, key: &Key) -> Result<Box<dyn AnyBoundLimit>, Error> {
        let own = self.algorithm().select_owned(key);
        if let Some(own) = &own {
            check_size(Limit::name(self), own)?;
        }
        let warn_key = self.warn_keys().and_then(|_| self.state_key(key));
        Ok(Box::new(BoundLimit { limit: Self::clone(self), own, kept_free: self.kept_free(key), warn_key }))
    }

    fn state_key(&self, key: &Key) -> Option<String> {
        let (mut name, mut sub_key) = (KeyWriter::new(), KeyWriter::new());
        name.bytes(Limit::name(self).as_bytes());
        self.sub_key().with_sub_key(key, |part| part.encode(&mut sub_key))?;
        let hash = hash_if_long(sub_key.as_str());
        let sub_key = hash.as_deref().unwrap_or(sub_key.as_str());
        Some(format!("{VERSION}:{}:{}:{sub_key}", name.as_str(), C::Algorithm::STATE_NAME))
    }

    fn name_limit(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        let Some(state_key) = self.state_key(key).filter(|_| !self.is_shadow()) else { return };
        let own = self.algorithm().select_owned(key);
        let algorithm = own.as_ref().or_else(|| self.algorithm().fixed());
        limits.add_limit(LimitOfKey {
            name: Limit::name(self),
            id: limit_id(state_key),
            is_of_store: false,
            cost: self.cost(),
            kept_free: self.kept_free(key).unwrap_or_default(),
            share: self.share(),
            max_waiting: algorithm.and_then(Algorithm::max_waiting),
        });
    }
}

/// Returns an error if the states of an algorithm can be too long.
fn check_size(name: &str, algorithm: &impl Algorithm) -> Result<(), Error> {
    let hits = algorithm.max_heap_bytes() / size_of::<(u64, u64)>();
    if hits > MAX_HITS {
        return Err(Error::config(format!(
            "limit {name:?}: its states have up to {hits} hits, and a store of your own reads and writes all of them for \
             each decision, at most {MAX_HITS}; use a `SlidingWindow`"
        )));
    }
    Ok(())
}

struct BoundLimit<C: AlgorithmSelector, P> {
    limit: Arc<Limit<C, P>>,
    /// The algorithm, if it is selected by the key.
    own: Option<C::Algorithm>,
    /// The units that are kept free from the key's requests, if the limit keeps any free.
    kept_free: Option<u64>,
    /// The key of the state, if the limit has a mark.
    warn_key: Option<String>,
}

type StateOf<C> = <<C as AlgorithmSelector>::Algorithm as Algorithm>::State;

impl<C: AlgorithmSelector, P> BoundLimit<C, P> {
    fn algorithm(&self) -> &C::Algorithm {
        let algorithm = self.own.as_ref().or_else(|| self.limit.algorithm().fixed());
        algorithm.expect("a limit selects an algorithm by the key, or has one for all keys")
    }

    fn transition(&self, options: AcquireOptions) -> Transition<'_, C::Algorithm> {
        self.limit.transition(self.algorithm(), self.kept_free, options)
    }

    fn decode(&self, stored: Option<&[u8]>) -> Result<Stored<StateOf<C>>, Error> {
        stored.map_or_else(|| Ok(Stored::zero()), |bytes| Stored::decode(C::Algorithm::STATE_NAME, bytes)).map_err(
            |cause| {
                Error::unavailable(format!(
                    "reading the state of a key under limit {:?} failed: {cause}; delete the state, or check what else \
                 writes it",
                    self.limit.name()
                ))
            },
        )
    }

    fn write(&self, stored: &Stored<StateOf<C>>, now: Timestamp) -> Result<StoreWrite, Error> {
        let state = stored.encode(C::Algorithm::STATE_NAME, now).ok_or_else(|| {
            Error::unavailable(format!(
                "the decision failed: a state of limit {:?} has more than {MAX_STATE_BYTES} bytes; bound it by \
                 `Algorithm::max_heap_bytes`",
                self.limit.name()
            ))
        })?;
        Ok(StoreWrite { state, expires_at: stored.expires_at() })
    }
}

impl<C: AlgorithmSelector, P: Send + Sync> AnyBoundLimit for BoundLimit<C, P> {
    fn name(&self) -> &Name {
        self.limit.name_handle()
    }

    fn read(&self, state: KeyState<'_>, mode: ReadMode) -> Result<LimitReading, Error> {
        let KeyState { stored, now, options } = state;
        let Stored { state, block } = self.decode(stored)?;
        Ok(self.transition(options).read(&state, 0, block.remaining(now), now, mode))
    }

    fn charge(
        &self,
        state: KeyState<'_>,
        delay: Duration,
        reading: &LimitReading,
    ) -> Result<(StoreWrite, LimitNumbers), Error> {
        let KeyState { stored, now, options } = state;
        let (mut stored, transition) = (self.decode(stored)?, self.transition(options));
        if let Some(next) = transition.charge(&stored.state, reading, now, delay) {
            stored.state.apply(next);
        }
        let snapshot = transition.snapshot(&stored.state, 0, now);
        let numbers = reading.numbers_after(self.limit.warn_keys(), snapshot, &self.warn_key, now);
        Ok((self.write(&stored, now)?, numbers))
    }

    fn set_usage(&self, state: KeyState<'_>, used: u64) -> Result<StoreWrite, Error> {
        let mut stored = Stored { state: Stored::zero().state, ..self.decode(state.stored)? };
        self.algorithm().charge(&mut stored.state, state.now, Duration::ZERO, used);
        self.write(&stored, state.now)
    }

    fn block(&self, state: KeyState<'_>, until: Timestamp, reason: BlockReason) -> Result<StoreWrite, Error> {
        let block = Block::new(state.now, until, reason);
        self.write(&Stored { block, ..self.decode(state.stored)? }, state.now)
    }

    fn status(&self, plan: &Plan, reading: &LimitReading, numbers: LimitNumbers) -> LimitStatus {
        let (name, verdict) = (self.limit.name_handle().clone(), plan.verdict_of(reading));
        LimitStatus::from_verdict(name, verdict, numbers.snapshot, reading.shadow)
            .with_block(reading.block())
            .with_borrowing(reading.borrows)
            .with_near(numbers.near)
    }
}
