use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::builder::RedisCellBuilder;
use super::rate::Rate;
use super::throttle::{Errand, Throttle, What};
use crate::clock::{Clock, SystemClock};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::limiter::{Acquisition, Limiter, LimiterFuture, Outcome};
use crate::observe::Observers;
use crate::quota::Quota;
use crate::store::redis::core::Core;
use crate::store::redis::keys::Keys;
use crate::store::redis::lane::Lanes;
use crate::store::redis::lines::{Lines, RedisFuture};
use crate::store::redis::server::RedisServer;

/// One limit over `CL.THROTTLE`: the command of the module redis-cell, and of Dragonfly.
///
/// It is GCRA, as [`Gcra`](crate::Gcra) is: what the quota says, and a burst. For a server that has the command already;
/// [`Redis`](crate::Redis) needs no module, has all algorithms, decides exactly, and can do all that a limiter can. Deadlines,
/// connections, what happens when Redis is gone, and how keys are named are the same here (the kernel is `cell`).
///
/// # What it can't do
///
/// - **WholeKey seconds.** A period must be whole seconds. The command tells waits in whole seconds, in its older versions
///   rounded down. So what is told here is the next second, or less where what is left shows that less is enough:
///   `retry_after` and `reset` are never too short, and too long by at most a second or the time of one, whichever is less (a
///   second more on a server that rounds up; where the time of one is no whole number of microseconds, a second).
/// - **One limit**: no several limits together, none by key, no delay, no shadow.
/// - **Nothing can be held**: [`hold`](Limiter::hold), [`set`](Limiter::set) and [`block`](Limiter::block) return an error for
///   which [`is_unsupported`](Error::is_unsupported) holds.
///   [`reset`](Limiter::reset) deletes the key. A peek asks for a quantity of zero.
/// - **No cluster.** The command declares no keys, so that no node of a cluster ever answers MOVED: each counts what it is
///   asked, and a limit would be had once for each node. A limiter with a cluster is an error when it is built.
///
/// A cost of more than the burst is [`Never`](Verdict::ExceedsLimit), without asking: the command says `-1` to that as to what is
/// allowed. Such a decision has no figures.
///
/// ```no_run
/// use tower_ratelimit::{AcquireOptions, Limiter, Quota, RedisCell, RedisServer};
///
/// # async fn f() -> Result<(), tower_ratelimit::Error> {
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let limiter = RedisCell::builder(server, "api", Quota::per_second(10)).burst(20).build()?;
/// limiter.health_check().await?;
///
/// assert!(limiter.acquire("alice", AcquireOptions::default()).await?.decision.is_allowed());
/// # Ok(())
/// # }
/// ```
pub struct RedisCell<Key: ?Sized> {
    handle: Arc<Shared>,
    key: PhantomData<fn(&Key)>,
}

struct Shared {
    lines: Lines<Throttle>,
    keys: Keys,
}

impl<Key: ?Sized> RedisCell<Key> {
    /// A limiter with the default settings; see [`Redis::new`](crate::Redis::new) for what the name is.
    ///
    /// # Panics
    ///
    /// If the name is empty, the quota is none that the command can count, or the server is a cluster.
    /// [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(server: impl Into<RedisServer>, name: &str, quota: Quota) -> Self {
        match Self::builder(server, name, quota).build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// A limiter with other than the default settings.
    pub fn builder(server: impl Into<RedisServer>, name: &str, quota: Quota) -> RedisCellBuilder<Key> {
        RedisCellBuilder::new(server.into(), name, quota)
    }

    pub(super) fn from_builder(builder: RedisCellBuilder<Key>, rate: Rate, keys: Keys) -> Self {
        let core = Core {
            server: builder.server,
            trade: Throttle { rate, clock: SystemClock::new() },
            lanes: Lanes::new(),
            deadline: builder.deadline,
            prefix: builder.prefix,
            name: builder.name,
            observers: Observers::default(),
            _presence: None,
        };
        Self { handle: Arc::new(Shared { lines: Lines::new(core), keys }), key: PhantomData }
    }

    /// Connects, and looks whether Redis takes writes and has the command.
    ///
    /// # Errors
    ///
    /// If there is no connection within two seconds, or Redis refuses the password or to write, or has no `CL.THROTTLE`; the
    /// error says which. [`is_config`](Error::is_config) holds outside of a tokio runtime, and in one without timer or I/O.
    pub async fn health_check(&self) -> Result<(), Error> {
        self.handle.lines.check().await
    }
}

impl<Key: EncodeKey + ?Sized> RedisCell<Key> {
    /// What a key is named in Redis: to find it by hand.
    #[must_use]
    pub fn redis_key(&self, key: &Key) -> String {
        String::from_utf8_lossy(&self.encode(key)).into_owned()
    }

    fn encode(&self, key: &Key) -> Vec<u8> {
        let (mut writer, mut name) = (KeyWriter::new(), Vec::with_capacity(64));
        key.encode(&mut writer);
        self.handle.keys.append(0, None, writer.as_str(), &mut name);
        name
    }

    /// Refuses for good what could never be had.
    fn never(&self, ask: AcquireOptions) -> Option<Decision> {
        let Throttle { rate, clock, .. } = &self.handle.lines.core.trade;
        let never = || Decision::by_policy(clock.now(), Verdict::ExceedsLimit).with_source(DecisionSource::Store);
        (!rate.fits(ask.cost)).then(never)
    }

    fn ask(&self, key: &Key, what: What) -> Result<RedisFuture, Error> {
        self.handle.lines.decide(|reply| Ok(Errand { key: self.encode(key), what, reply }))
    }
}

impl<Key: EncodeKey + ?Sized> Limiter<Key> for RedisCell<Key> {
    type Future = RedisFuture;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<RedisFuture> {
        if ask.hold {
            return Acquisition::Ready(Err(Error::unsupported(
                "hold failed: redis-cell cannot hold a cost; use `Redis` instead of `RedisCell`",
            )));
        }
        if let Some(never) = self.never(ask) {
            return Acquisition::Ready(Ok(Outcome::from(never)));
        }
        match self.ask(key, What::Acquisition(ask.cost)) {
            Ok(future) => Acquisition::Pending(future),
            Err(error) => Acquisition::Ready(Err(error)),
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        if let Some(never) = self.never(ask) {
            return LimiterFuture::ready(Ok(never));
        }
        match self.ask(key, What::Peek(ask.cost)) {
            Ok(future) => LimiterFuture::pending(async move { future.await.map(|outcome| outcome.decision) }),
            Err(error) => LimiterFuture::ready(Err(error)),
        }
    }

    fn reset(&self, key: &Key) -> LimiterFuture<()> {
        self.handle.lines.operate(|reply| Ok(Errand { key: self.encode(key), what: What::Reset, reply }))
    }
}

impl<Key: ?Sized> Clone for RedisCell<Key> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle), key: PhantomData }
    }
}

impl<Key: ?Sized> fmt::Debug for RedisCell<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.handle.lines.core;
        f.debug_struct("RedisCell")
            .field("server", &core.server)
            .field("rate", &core.trade.rate)
            .field("deadline", &core.deadline)
            .finish_non_exhaustive()
    }
}
