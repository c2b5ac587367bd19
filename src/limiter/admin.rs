use std::time::Duration;

use super::capacity::capacity_added;
use super::future::LimiterFuture;

/// An administrative operation on one key, for [`Limiter::administer`](super::Limiter::administer).
///
/// A limit that was not named has the name `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdminOperation<'a> {
    /// Sets the usage of the key under one limit, as if the key had used `used` just now.
    SetUsage {
        /// The name of the limit.
        limit: &'a str,
        /// The usage to set.
        used: u64,
    },
    /// Blocks the key under one limit: the limit denies the key for `duration`, whatever its usage.
    ///
    /// A block applies to the sub-key by which the limit counts. A later block replaces an earlier one. A `duration` of
    /// zero lifts the block. The usage of the key does not change.
    Block {
        /// The name of the limit.
        limit: &'a str,
        /// For how long the limit denies the key.
        duration: Duration,
    },
    /// Resets the usage of the key under all limits to that of a never-seen key. Blocks stay.
    Reset,
}

impl AdminOperation<'_> {
    /// Whether the limiter may allow more after the operation than before.
    fn may_add_capacity(&self) -> bool {
        !matches!(self, Self::Block { duration, .. } if !duration.is_zero())
    }

    /// Returns the future of this operation, which wakes waiting requests of this process in the end.
    pub(crate) fn wake_waiters(&self, done: LimiterFuture<()>) -> LimiterFuture<()> {
        if self.may_add_capacity() { done.map(|()| capacity_added()) } else { done }
    }
}

/// Defines `set_usage`, `block`, `unblock` and `reset` on a limiter, so that users need not import `Limiter` for them.
///
/// `admin_methods!()` defines them for every key type that the limiter accepts, `admin_methods!(Key)` for the type
/// parameter `Key` of the limiter.
macro_rules! admin_methods {
    () => { $crate::limiter::admin_methods!(@define [Key: ?Sized] Key); };
    ($Key:ident) => { $crate::limiter::admin_methods!(@define [] $Key); };
    (@define [$($generics:tt)*] $Key:ident) => {
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
            $crate::limiter::Limiter::administer(self, key, $crate::limiter::AdminOperation::Block { limit, duration })
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
            $crate::limiter::Limiter::administer(self, key, $crate::limiter::AdminOperation::Block { limit, duration })
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

pub(crate) use admin_methods;
