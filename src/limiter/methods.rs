//! The methods that all limiters have in common, so that users need not import `Limiter` for them.

use super::{Limiter, LimiterFuture, Outcome};
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;

/// Defines `check`, `hold`, `settle`, `release`, `set_usage`, `block`, `unblock` and `reset` on a limiter.
///
/// `limiter_methods!()` defines them for every key type that the limiter accepts, `limiter_methods!(Key)` for the type
/// parameter `Key` of the limiter. `limiter_methods!(Key: check)` defines a part.
macro_rules! limiter_methods {
    () => {
        $crate::limiter::limiter_methods!(@check [Key: ?Sized] Key);
        $crate::limiter::limiter_methods!(@hold [Key: ?Sized] Key);
        $crate::limiter::limiter_methods!(@administer [Key: ?Sized] Key);
    };
    ($Key:ident) => { $crate::limiter::limiter_methods!($Key: check hold administer); };
    ($Key:ident: $($part:ident)*) => { $($crate::limiter::limiter_methods!(@$part [] $Key);)* };
    (@check [$($generics:tt)*] $Key:ident) => {
        /// Decides, and charges the key if the request is allowed. An integer is the cost of the request.
        ///
        /// This method charges, also if the options ask for a hold: to hold a cost, call `hold`.
        ///
        /// # Errors
        ///
        /// If the store cannot decide. An error for which [`is_config`](crate::Error::is_config) holds if a limit counts
        /// requests [in flight](crate::InFlight): call `hold`, and keep its guard until the request has ended.
        pub fn check<$($generics)*>(
            &self,
            key: &$Key,
            options: impl Into<$crate::AcquireOptions>,
        ) -> $crate::limiter::LimiterFuture<$crate::Decision>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            $crate::limiter::check(self, key, options.into())
        }
    };
    (@hold [$($generics:tt)*] $Key:ident) => {
        /// Holds the cost instead of charging it, if the request is allowed. An integer is the cost of the request.
        ///
        /// A held cost counts like a charged one, until the guard in [`Outcome::held`](crate::limiter::Outcome::held)
        /// settles or releases it. Keep the guard until the request has ended
        /// ([`AcquireOptions::until_end`](crate::AcquireOptions::until_end)). For an `impl Limiter` call
        /// `acquire(key, options.hold().until_end())`.
        ///
        /// # Errors
        ///
        /// If the store cannot decide, or the limiter cannot hold a cost.
        pub fn hold<$($generics)*>(
            &self,
            key: &$Key,
            options: impl Into<$crate::AcquireOptions>,
        ) -> $crate::limiter::LimiterFuture<$crate::limiter::Outcome>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            $crate::limiter::Limiter::acquire(self, key, options.into().hold().until_end())
        }

        /// Ends the hold with this [id](crate::AcquireOptions::id) on the key, and charges `actual`: a number, or
        /// [`Costs`](crate::Costs). Any process that shares the store can call it.
        ///
        /// The first call takes effect. Each later one succeeds and changes nothing. After the hold's expiry only what
        /// exceeds the held cost is charged. Each limit charges its own actual cost, as
        /// [`Held::settle`](crate::limiter::Held::settle) says.
        ///
        /// # Errors
        ///
        /// - [`is_unknown_id`](crate::Error::is_unknown_id): the key has no remembered hold with this id. Nothing is charged.
        /// - No limit names one of the units, or the id is empty.
        /// - The store cannot record the charge, or the limiter does not support ids.
        ///
        /// # Cancellation
        ///
        /// The settlement takes effect even if the future is dropped. After an error of the store, call it again.
        pub fn settle<$($generics)*>(
            &self,
            key: &$Key,
            id: impl Into<$crate::ReservationId>,
            actual: impl Into<$crate::Costs>,
        ) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            let operation = $crate::limiter::AdminOperation::Settle { id: id.into(), actual: actual.into() };
            $crate::limiter::Limiter::administer(self, key, operation)
        }

        /// Ends the hold with this [id](crate::AcquireOptions::id) on the key, and charges nothing.
        ///
        /// # Errors
        ///
        /// As for [`settle`](Self::settle).
        pub fn release<$($generics)*>(
            &self,
            key: &$Key,
            id: impl Into<$crate::ReservationId>,
        ) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            self.settle(key, id, 0)
        }
    };
    (@administer [$($generics:tt)*] $Key:ident) => {
        /// Sets the usage of a key under one limit, as if the key had used `used` just now.
        ///
        /// A limit that was not named has the name `default`.
        ///
        /// `key` is the key that the layer's extractor returns: see [`PeerIp::key_of`](crate::PeerIp::key_of),
        /// [`ClientIp::key_of`](crate::ClientIp::key_of), [`ApiKey::key_of`](crate::key::ApiKey::key_of) and
        /// [`KeyText`](crate::key::KeyText).
        ///
        /// # Errors
        ///
        /// If there is no limit with this name, or the store cannot record the usage.
        pub fn set_usage<$($generics)*>(&self, limit: &str, key: &$Key, used: u64) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            $crate::limiter::Limiter::administer(self, key, $crate::limiter::AdminOperation::SetUsage { limit, used })
        }

        /// Blocks a key under one limit: the limit denies the key for `duration`, whatever its usage.
        ///
        /// A block applies to the sub-key by which the limit counts. A later block replaces an earlier one. The usage
        /// of the key does not change.
        ///
        /// `key` is the key that the layer's extractor returns: see [`PeerIp::key_of`](crate::PeerIp::key_of),
        /// [`ClientIp::key_of`](crate::ClientIp::key_of), [`ApiKey::key_of`](crate::key::ApiKey::key_of) and
        /// [`KeyText`](crate::key::KeyText).
        ///
        /// # Errors
        ///
        /// If there is no limit with this name, or the store cannot record the block.
        pub fn block<$($generics)*>(
            &self,
            limit: &str,
            key: &$Key,
            duration: ::std::time::Duration,
        ) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            let reason = $crate::BlockReason::Administrator;
            let block = $crate::limiter::AdminOperation::Block { limit, duration, reason };
            $crate::limiter::Limiter::administer(self, key, block)
        }

        /// Lifts the block of a key under one limit. The usage of the key does not change.
        ///
        /// `key` is the key that the layer's extractor returns: see [`PeerIp::key_of`](crate::PeerIp::key_of),
        /// [`ClientIp::key_of`](crate::ClientIp::key_of), [`ApiKey::key_of`](crate::key::ApiKey::key_of) and
        /// [`KeyText`](crate::key::KeyText).
        ///
        /// # Errors
        ///
        /// If there is no limit with this name, or the store cannot be changed.
        pub fn unblock<$($generics)*>(&self, limit: &str, key: &$Key) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            let duration = ::std::time::Duration::ZERO;
            let reason = $crate::BlockReason::Administrator;
            let block = $crate::limiter::AdminOperation::Block { limit, duration, reason };
            $crate::limiter::Limiter::administer(self, key, block)
        }

        /// Resets the usage of a key under all limits to that of a never-seen key. Blocks stay.
        ///
        /// `key` is the key that the layer's extractor returns: see [`PeerIp::key_of`](crate::PeerIp::key_of),
        /// [`ClientIp::key_of`](crate::ClientIp::key_of), [`ApiKey::key_of`](crate::key::ApiKey::key_of) and
        /// [`KeyText`](crate::key::KeyText).
        ///
        /// # Errors
        ///
        /// If the store cannot be changed.
        pub fn reset<$($generics)*>(&self, key: &$Key) -> $crate::limiter::LimiterFuture<()>
        where
            Self: $crate::limiter::Limiter<$Key>,
        {
            $crate::limiter::Limiter::administer(self, key, $crate::limiter::AdminOperation::Reset)
        }
    };
}

pub(crate) use limiter_methods;

/// Returns the options for two limiters inside of the limiter `name`, which supports no reservation ids. Each of the two
/// charges the units of its limits.
///
/// # Errors
///
/// Returns an error if neither has a limit that names a unit of the costs, or if there is an id.
#[inline]
pub(super) fn options_for_both<Key, A, B>(
    name: &str,
    first: &A,
    second: &B,
    options: AcquireOptions,
) -> Result<AcquireOptions, Error>
where
    Key: ?Sized,
    A: Limiter<Key>,
    B: Limiter<Key>,
{
    options.check_no_id(name)?;
    options.check_units(|visit| {
        first.visit_units(visit);
        second.visit_units(visit);
    })?;
    Ok(options.with_known_units())
}

/// Decides for a caller that keeps no guard.
pub(crate) fn check<Key, L>(limiter: &L, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision>
where
    Key: ?Sized,
    L: Limiter<Key>,
{
    limiter.acquire(key, options.without_guard()).map_result(decision_of)
}

fn decision_of(result: Result<Outcome, Error>) -> Result<Decision, Error> {
    Ok(result?.check_guard(false)?.decision)
}
