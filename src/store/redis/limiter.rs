use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::builder::RedisBuilder;
use super::limiter_state::LimiterState;
use super::limits::IntoRedisLimits;
use super::script::Operation;
use super::server::RedisServer;
use crate::decision::{AcquireOptions, BlockReason, Decision};
use crate::error::Error;
use crate::limiter::{AdminOperation, Limiter, LimiterFuture, LimitsOfKey, Outcome};
use crate::observe::Event;
use crate::store::inner::{MAX_PERIOD_MICROS, capacity_added, micros_floor};

/// A limiter that stores its states in Redis. All processes with a limiter of the same name share them.
///
/// It decides exactly as [`Memory`](crate::Memory) does. A Lua script on the server runs each algorithm by the server's
/// clock, atomically: all limits of a decision allow, or none is charged. A decision takes at most one round trip.
/// Decisions that arrive while other calls are in flight travel together in the next call, in the order of arrival.
/// Each key expires within two seconds after its state and its block have ended.
///
/// # Failures
///
/// A decision without a reply within its [`deadline`](RedisBuilder::deadline) (50 ms by default) fails with an error
/// for which [`is_unavailable`](Error::is_unavailable) holds. After three consecutive failures a circuit breaker opens,
/// and decisions fail at once; calls that were in flight together count as one failure. While the breaker is open, about
/// one decision in 200 ms tests Redis, and may wait for its deadline. The first call that Redis answers closes the breaker.
/// An answer about the call, such as a missing permission, is no outage.
///
/// The layer answers a failed decision with 503. [`Fallback`](crate::limiter::Fallback) asks another limiter instead,
/// and [`FailOpen`](crate::limiter::FailOpen) allows the request.
///
/// # Charges of failed decisions
///
/// A decision that was dropped or failed before it was sent is not charged. If it was sent, it may have been charged,
/// at most once, because the client never sends a decision twice. A fail-over of Redis loses what had not been
/// replicated.
///
/// # Holds
///
/// Redis stores the costs that this process [holds](crate::limiter::Held) beside the state. The process renews its
/// holds in the background, three times per [expiry](RedisBuilder::hold_expiry) (10 s by default), so a hold lasts as
/// long as its guard. If the process dies, or cannot reach Redis for the expiry, Redis charges the whole held cost, as
/// of the expiry.
///
/// - **A settlement takes effect once.** The process repeats it until Redis confirms it, also if the caller has gone,
///   the deadline has passed, or Redis is unreachable for a while. If the hold expires first, Redis has charged the
///   whole held cost. The process then charges only a surcharge (actual cost above the held one), at most once. The
///   actual cost of a hold of 0 is charged at most once.
/// - **A hold without a reply** fails. The process releases it as soon as it reaches Redis again; otherwise the hold
///   expires, and Redis charges it. A hold that is dropped before its reply is released.
/// - **Without a runtime** nothing can be sent: a guard may be dropped outside of tokio, or with the last runtime.
///   Another runtime that uses the limiter settles the hold, or it expires.
/// - **At most 64 sessions** hold costs on one key: one for each process and limiter, for a moment a few more. Leases
///   count apart. A further hold returns an error for which [`is_unavailable`](Error::is_unavailable) holds. Decisions continue.
///
/// # Keys
///
/// A key in Redis is `prefix:name:limit:script:key`, as in `ratelimit:api:default:bucket2:192.0.2.7`. The last part is
/// the key as [`EncodeKey`](crate::key::EncodeKey) writes it. A key longer than 128 bytes is replaced by `#` and its
/// SHA-256. With [`hash_keys`](RedisBuilder::hash_keys) every key is replaced by `~` and a keyed hash. For a limit from
/// configuration that counts by a sub-key, `limit` is `limit,sub-key`.
///
/// A value is the state's numbers as little-endian doubles. In `redis-cli`,
/// `EVAL "return {struct.unpack('<dddddd', redis.call('GET', KEYS[1]))}" 1 KEY` reads a bucket's.
///
/// [`usage`](crate::Memory::usage) and [`top_keys`](crate::Memory::top_keys) exist on [`Memory`](crate::Memory) only:
/// they read the whole table. In Redis they would have to scan all keys of the server, with the keys of other
/// applications. An index of keys by usage does not exist: each decision would have to write the index. For the memory
/// of a key see `MEMORY USAGE` in `redis-cli`, and for one key's usage [`peek`](crate::Limiter::peek).
///
/// # In a cluster
///
/// (`RedisServer::cluster`, feature `redis-cluster`.) The keys of one decision must share a cluster slot. One limit has
/// one key per decision, and its keys spread over all slots. The keys of **several limits** are
/// `prefix:{name}:limit:script:key`. Redis computes the slot from the text in braces, so all of these keys are on one
/// node. This suits limits that one node can serve, and limits that count all keys together. Otherwise
/// [`slot_by`](RedisBuilder::slot_by) spreads the keys by a part of the key. If there is no such part ("per user, and
/// in all"), make each limit a limiter of its own, and let [`Chained`](crate::limiter::Chained) decide over both. The
/// first limiter then holds the cost until the second has decided.
///
/// Operations travel together slot by slot. While a slot with several limits moves, the client repeats a decision until
/// its deadline.
///
/// ```no_run
/// use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Quota, Redis, RedisServer};
///
/// # async fn f() -> Result<(), tower_ratelimit::Error> {
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let limiter = Redis::new(server, "api", Gcra::new(Quota::per_second(10)).burst(20));
/// limiter.health_check().await?;
///
/// let decision = limiter.acquire("alice", AcquireOptions::default()).await?.decision;
/// assert!(decision.is_allowed());
/// # Ok(())
/// # }
/// ```
pub struct Redis<Key: ?Sized> {
    shared: Arc<Shared<Key>>,
}

struct Shared<Key: ?Sized> {
    state: ArcSwap<LimiterState<Key>>,
    /// Locked while the state is replaced.
    replacing: Mutex<()>,
}

impl<Key: ?Sized> Redis<Key> {
    /// The maximum number of limits.
    pub const MAX_LIMITS: usize = 16;

    /// A limiter with the default settings.
    ///
    /// `name` identifies the limiter: limiters with the same name on the same Redis share their keys, limit by limit.
    ///
    /// This method opens no connection: see [`health_check`](Self::health_check).
    ///
    /// # Panics
    ///
    /// If the name is empty, or two limits have the same name. [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(server: impl Into<RedisServer>, name: &str, limits: impl IntoRedisLimits<Key>) -> Self {
        match Self::builder(server, name, limits).build() {
            Ok(redis) => redis,
            Err(error) => panic!("{error}"),
        }
    }

    /// Builds a limiter with other settings.
    pub fn builder(server: impl Into<RedisServer>, name: &str, limits: impl IntoRedisLimits<Key>) -> RedisBuilder<Key> {
        RedisBuilder::new(server.into(), name, limits)
    }

    pub(crate) fn from_builder(builder: RedisBuilder<Key>) -> Result<Self, Error> {
        let (state, conflicts) = LimiterState::new(builder, None)?;
        for message in &conflicts {
            state.client.config.health.observers.emit(|| Event::Warning { message });
        }
        Ok(Self { shared: Arc::new(Shared { state: ArcSwap::from_pointee(state), replacing: Mutex::default() }) })
    }

    fn state(&self) -> Guard<Arc<LimiterState<Key>>> {
        self.shared.state.load()
    }

    /// Replaces the limits while the limiter is used, as [`Memory::replace`](crate::Memory::replace) does.
    ///
    /// Keys keep their usage under a limit that has the name, the sub-key and the kind of algorithm of an earlier one,
    /// because these name the keys in Redis. In a cluster without [`slot_by`](RedisBuilder::slot_by), a limiter with one
    /// limit names its keys differently than one with several.
    ///
    /// Decisions that are in flight end under the earlier limits. So do holds, until another hold of this process on the same
    /// key begins: the process then renews and settles the two together, by the later limits. The limiter keeps its
    /// connection. All clones of this limiter have the new limits at once. Other processes keep theirs until they call this method; until then each process decides by its
    /// own limits on the shared usage.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::build`]. The earlier limits stay.
    pub fn replace(&self, limits: impl IntoRedisLimits<Key>) -> Result<(), Error> {
        let limits = limits.into_limits().into();
        self.replace_state(|builder| Ok(RedisBuilder { limits, ..builder }))?;
        capacity_added();
        Ok(())
    }

    /// Connects, and makes decisions of cost 1 on random keys in the limiter's namespace, on each node of a cluster.
    ///
    /// Call it at start-up: misconfiguration is known before the first request, and the script is loaded. The keys are
    /// removed at the end, or expire.
    ///
    /// The check writes a key of limits on requests in flight, and makes no decision by them. It does not check limits
    /// whose algorithm the key chooses.
    ///
    /// # Errors
    ///
    /// If there is no connection within the time to [connect](RedisBuilder::deadline), at least two seconds, or no decision
    /// within twice that time. If Redis rejects the password, the script or a command of the script, the server is
    /// in cluster mode and the limiter is not, or a proxy distributes the keys of one call over several servers. The error
    /// names the cause. [`is_config`](Error::is_config) holds outside of a tokio runtime, and in one without timer or I/O.
    pub async fn health_check(&self) -> Result<(), Error> {
        let state = self.shared.state.load_full();
        state.health_check().await
    }

    /// Replaces the secret of [`hash_keys`](RedisBuilder::hash_keys).
    ///
    /// All keys change with the secret, so every key starts without usage. The old keys expire, and the
    /// [leases](RedisBuilder::lease) on them are released.
    ///
    /// # Errors
    ///
    /// If keys are not hashed, or the secret has fewer than 16 bytes.
    pub fn rotate_secret(&self, secret: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.replace_state(|mut builder| match builder.settings.secret.replace(secret.into()) {
            Some(_) => Ok(builder),
            None => Err(Error::config(
                "rotating the secret failed: this limiter's keys are not hashed; build the limiter with `hash_keys`",
            )),
        })
    }

    fn replacing(&self) -> MutexGuard<'_, ()> {
        self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds the next state, from the settings and the limits of the present one.
    fn replace_state(
        &self,
        change: impl FnOnce(RedisBuilder<Key>) -> Result<RedisBuilder<Key>, Error>,
    ) -> Result<(), Error> {
        let _replacing = self.replacing();
        let earlier = self.state();
        // The earlier limits conflict with the new ones until they are dropped, so conflicts are not reported.
        let (state, _conflicts) = LimiterState::new(change(earlier.builder())?, Some(&*earlier))?;
        self.shared.state.store(Arc::new(state));
        Ok(())
    }

    /// Releases all [leases](RedisBuilder::lease) of this process, and waits for the confirmation. From then on Redis
    /// makes all decisions, also after [`replace`](Self::replace).
    ///
    /// Call it before the process ends: Redis charges leases that are not released. Dropping the limiter releases them
    /// too, but waits for nothing, and needs a runtime that goes on for a moment.
    ///
    /// # Errors
    ///
    /// If Redis confirms nothing for twice the [`deadline`](RedisBuilder::deadline). The leases that remain make no more
    /// decisions, and Redis charges them when they expire. While Redis confirms, the method takes as long as the number of leases needs.
    pub async fn close(&self) -> Result<(), Error> {
        let state = {
            // Limits that replace these are closed from the start.
            let _replacing = self.replacing();
            let state = self.shared.state.load_full();
            state.leases.iter().for_each(|leases| leases.close());
            state
        };
        for leases in state.unreleased_leases() {
            leases.release_all(&*state.client, state.client.config.deadline * 2).await?;
        }
        Ok(())
    }

    /// Returns the name in Redis of a key of a limit.
    ///
    /// # Errors
    ///
    /// If there is no limit with this name, or if the limit does not apply to the key.
    pub fn redis_key(&self, limit: &str, key: &Key) -> Result<String, Error> {
        let state = self.state();
        let index = state.limit_of(limit, key)?;
        Ok(String::from_utf8_lossy(state.target(key, Vec::new())?.key(index)).into_owned())
    }
}

impl<Key: ?Sized + 'static> Limiter<Key> for Redis<Key> {
    #[inline]
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let state = self.state();
        match state.check_units(options) {
            Ok(()) => state.acquire(key, options),
            Err(error) => LimiterFuture::ready(Err(error)),
        }
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let state = self.state();
        LimiterFuture::of_result(state.check_units(options).and_then(|()| {
            if state.is_exempt(key) {
                return Ok(LimiterFuture::ready(Ok(state.exempt_decision(options))));
            }
            state.decide(Operation::Peek, key, options)
        }))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        let state = self.state();
        if !limits.add_all(|visit| state.limits().iter().for_each(|limit| limit.facts.describe(visit))) {
            state.name_limits(key, limits);
        }
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let state = self.state();
        let done = match operation {
            AdminOperation::SetUsage { limit, used } => state
                .limit_of(limit, key)
                .map(|limit| state.operate(key, [limit].into_iter(), Operation::Set, used, used)),
            AdminOperation::Block { limit, duration, reason } => state.limit_of(limit, key).map(|limit| {
                // Twice the time, plus the reason.
                let micros = micros_floor(duration).min(MAX_PERIOD_MICROS);
                let argument = 2 * micros + u64::from(reason == BlockReason::Escalation);
                state.operate(key, [limit].into_iter(), Operation::Block, 0, argument)
            }),
            AdminOperation::Settle { id, actual } => state.settle(key, id, actual),
            AdminOperation::Reset => {
                let all = (0..state.limit_fns.len()).filter(|limit| state.limit_fns[*limit].0.applies_to(key));
                Ok(state.operate(key, all, Operation::Reset, 0, 0))
            }
        };
        operation.wake_waiters(self, key, LimiterFuture::of_result(done))
    }
}

impl_clone!([Key: ?Sized] Redis<Key> { shared });

impl_debug!([Key: ?Sized] Redis<Key> |redis| {
    server: redis.state().settings.server,
    limits: redis.state().limits().iter().map(|limit| limit.facts.name.as_str()).collect::<Vec<_>>(),
    deadline: redis.state().settings.deadline,
});
