use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use super::builder::{RedisBuilder, Tag};
use super::limits::IntoRedisLimits;
use super::server::{RedisServer, no_runtime};
use crate::clock::{MAX_PERIOD_MICROS, micros_floor};
use crate::decision::{AcquireOptions, Decision};
use crate::encode::KeyWriter;
use crate::error::Error;
use crate::limiter::{Acquisition, AdminOperation, Limiter, LimiterFuture, admin_methods};
use crate::observe::Event;
use crate::runtime::sleep;
use crate::store::redis::bound_limit::{Row, RowInfo};
use crate::store::redis::client::config::Core;
use crate::store::redis::client::operation::{Operation, Order, Shape, Steps};
use crate::store::redis::client::protocol::Calls;
use crate::store::redis::client::trade::{Answer, Done};
use crate::store::redis::client::{Lines, RedisFuture, lost};
use crate::store::redis::conflicts::Presence;
use crate::store::redis::health::node::Lanes;
use crate::store::redis::holds::registry::{Holds, operation, outcome};
use crate::store::redis::key_format::Keys;
use crate::store::redis::script::replay::Twin;
use crate::store::redis::script::source::Script;

/// A limiter whose states lie in Redis, shared by all processes that use the same name there.
///
/// It decides exactly as [`Memory`](crate::Memory) does: a script on the server runs the twin of each algorithm, by the
/// server's clock, atomically, all limits of a decision or none. A decision is at most one round trip; those that come while
/// others are on their way travel together in the next call, in the order in which they came, and are decided one after the
/// other. Every key it writes expires within two seconds after its state, and its block, have ended.
///
/// # When Redis is slow, or gone
///
/// A decision that is not there within its [`deadline`](RedisBuilder::deadline) (50 ms unless said otherwise) fails with an
/// error for which [`is_unavailable`](Error::is_unavailable) holds. After three failures in a row
/// (calls that were under way together are one failure), decisions fail at once until a probe of Redis succeeds. A task probes at
/// once and then every 200 ms, with or without traffic. What a failed decision means for a
/// request is for others to say: the layer answers 503; [`Fallback`](crate::limiter::Fallback) asks another limiter, and
/// [`FailOpen`](crate::limiter::FailOpen) lets it pass.
///
/// # What may be charged
///
/// A decision that is dropped or fails by its deadline is not charged if it was not sent yet; if it was, it may have been
/// charged: at most once, as nothing is ever sent twice. After a fail-over of Redis, what the new master had not been told is
/// forgotten.
///
/// # Holds
///
/// A cost that this process [holds](crate::limiter::Held) lies in Redis beside the state. The process renews what it holds in the
/// background, three times in the [expiry](RedisBuilder::hold_expiry) (10 s unless set otherwise), so a hold lasts as long as its
/// guard. If the process dies, or Redis does not hear of it for the expiry, Redis settles the hold whole, as of its expiry.
///
/// - **Settling is exactly once in effect.** Settlements are sent again until Redis acknowledges them: also if the caller has left,
///   the deadline has passed, or Redis is not reachable for a while. If the hold expires before, Redis has settled it whole, and
///   only a surcharge (an actual cost above the held one) is charged then, at most once. The actual cost of a hold of 0 is charged
///   at most once.
/// - **A hold whose reply is lost or late** fails. It is released as soon as the process knows more; at the latest it expires, and
///   is settled whole. A hold that is dropped before it is answered is released.
/// - **Without a runtime** (a guard that is dropped outside of tokio, or with the last runtime) nothing can be sent: another
///   runtime of the limiter settles it, or it expires.
/// - **At most 64 sessions** hold on one key: one for each process and limiter, for a moment a few more. A further hold is an
///   error for which [`is_unavailable`](Error::is_unavailable) holds; decisions go on.
///
/// # Keys
///
/// A key is named `prefix:name:limit:kernel:key`, as in `ratelimit:api:default:bucket2:192.0.2.7`; the last part as
/// [`EncodeKey`](crate::key::EncodeKey) writes it. A key longer than 128 bytes is replaced by `#` and its SHA-256; with
/// [`hash_keys`](RedisBuilder::hash_keys) all are by `~` and a keyed hash. A value is the state's numbers as
/// little-endian doubles; in `redis-cli`, `EVAL "return {struct.unpack('<dddddd', redis.call('GET', KEYS[1]))}" 1 KEY` reads
/// a bucket's.
///
/// # In a cluster
///
/// (`RedisServer::cluster`, feature `redis-cluster`.) A decision's keys must be in one slot. One limit has one key, and its keys
/// spread over all slots by themselves. The keys of **several limits** are named `prefix:{name}:limit:kernel:key`: what stands in
/// braces chooses the slot, so all of them are in one, on one node. That is right for what one node can do, and for limits that
/// count all keys together. Otherwise [`slot_by`](RedisBuilder::slot_by) says by which part of a key they are spread; and where
/// there is no such part ("per user, and in all"), each limit is a limiter of its own, and
/// [`Chained`](crate::limiter::Chained) decides over both: the first limiter holds the cost until the second has decided.
///
/// Those that wait travel together slot by slot. While a slot with several limits moves, a decision on it may be told to come back
/// later until its deadline.
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
    handle: Arc<Shared<Key>>,
}

struct Shared<Key: ?Sized> {
    lines: Arc<Lines<Calls>>,
    rows: Vec<Box<dyn Row<Key>>>,
    keys: Keys,
    tag: Option<Tag<Key>>,
    /// What was asked last: most asks are alike.
    shape: ArcSwapOption<(Operation, u64, Option<Duration>, Arc<Shape>)>,
}

impl<Key: ?Sized> Redis<Key> {
    /// How many limits can decide together.
    pub const MAX_LIMITS: usize = 16;

    /// A limiter with the default settings. `name` is its identity: limiters of the same name on the same Redis share their
    /// keys, limit by limit.
    ///
    /// Nothing is connected yet: [`check`](Self::check) does that.
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

    /// A limiter with other than the default settings.
    pub fn builder(server: impl Into<RedisServer>, name: &str, limits: impl IntoRedisLimits<Key>) -> RedisBuilder<Key> {
        RedisBuilder::new(server.into(), name, limits)
    }

    pub(crate) fn from_builder(builder: RedisBuilder<Key>) -> Result<Self, Error> {
        let rows: Vec<_> = builder.limits.into_iter().map(|limit| limit.0).collect();
        let infos: Vec<_> = rows.iter().map(|row| row.info()).collect();
        crate::limit::check_unique_names(infos.iter().map(|info| info.name.as_str()))?;
        let (presence, odds) = Presence::announce(builder.server.places(), &builder.prefix, &builder.name, &infos);
        for message in &odds {
            builder.observers.emit(|| Event::Warning { message });
        }
        let limits = infos.iter().map(|info| (info.name.as_str(), info.kernel.name()));
        let mut keys = Keys::new(&builder.prefix, &builder.name, limits, builder.secret.as_deref());
        if builder.server.is_cluster() && infos.len() > 1 && builder.tag.is_none() {
            keys = keys.in_one_slot(&builder.name);
        }
        let lines = Arc::new_cyclic(|lines| {
            let holds = Holds::new(builder.hold_expiry, &builder.name, &builder.observers, Weak::clone(lines));
            Lines::new(Core {
                name: builder.name,
                server: builder.server,
                trade: Calls { script: Script::of(&infos), rows: infos, holds: Arc::new(holds), clock: builder.clock },
                lanes: Lanes::new(),
                deadline: builder.deadline,
                prefix: builder.prefix,
                observers: builder.observers,
                _presence: Some(presence),
            })
        });
        let handle = Shared { lines, rows, keys, tag: builder.tag, shape: ArcSwapOption::empty() };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Connects, looks whether Redis takes writes, and loads the script: so that what is wrong is known before the first
    /// request, which then finds all warm.
    ///
    /// # Errors
    ///
    /// If there is no connection within two seconds, or Redis refuses the password, the script, or to write; the error says
    /// which. [`is_config`](Error::is_config) holds outside of a tokio runtime, and in one without timer or I/O.
    pub async fn health_check(&self) -> Result<(), Error> {
        self.handle.lines.check().await
    }

    /// Replaces the secret of [`hash_keys`](RedisBuilder::hash_keys): every key begins anew from then on, and those of
    /// the former secret expire by themselves.
    ///
    /// # Errors
    ///
    /// If keys are not hashed, or the secret has fewer than 16 bytes.
    pub fn rotate_secret(&self, secret: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.handle.keys.rotate(&secret.into())
    }

    admin_methods!(Key);

    /// What a key of a limit is named in Redis: to find it by hand.
    ///
    /// # Errors
    ///
    /// If there is no limit with this name.
    pub fn redis_key(&self, limit: &str, key: &Key) -> Result<String, Error> {
        let index = self.handle.limit(limit)?;
        let (keys, ends) = self.handle.encode(key)?;
        let start = if index == 0 { 0 } else { ends[index - 1] };
        Ok(String::from_utf8_lossy(&keys[start..ends[index]]).into_owned())
    }
}

impl<Key: ?Sized> Shared<Key> {
    fn limit(&self, name: &str) -> Result<usize, Error> {
        let found = self.infos().iter().position(|row| row.name.as_str() == name);
        found.ok_or_else(|| {
            Error::config(format!("there is no limit named {name:?} (one that was not named is \"default\")"))
        })
    }

    /// The keys of all limits in one text, and where each ends.
    fn encode(&self, key: &Key) -> Result<(Vec<u8>, Vec<usize>), Error> {
        let mut keys = Vec::with_capacity(64 * self.rows.len());
        let mut writer = KeyWriter::new();
        let tag = self.tag.as_ref().map(|tag| {
            let mut writer = KeyWriter::new();
            tag(key, &mut writer);
            writer
        });
        let tag = tag.as_ref().map(KeyWriter::as_str);
        if tag == Some("") {
            return Err(Error::config("`slot_by` chose nothing: a tag that is empty chooses no slot"));
        }
        let mut ends = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter().enumerate() {
            writer.clear();
            row.encode(key, &mut writer);
            if tag.is_some() && writer.as_str().is_empty() {
                return Err(Error::config(
                    "a limit on all keys together can't be spread by `slot_by`: let it be a limiter of its own, and decide in two \
                     phases with `limiter::Chained`",
                ));
            }
            self.keys.append(index, tag, writer.as_str(), &mut keys);
            ends.push(keys.len());
        }
        Ok((keys, ends))
    }

    /// For each limit the algorithm for this key; empty if each has the same one for all keys.
    fn twins(&self, key: &Key) -> Vec<Option<Arc<dyn Twin>>> {
        if self.infos().iter().all(|row| row.fixed.is_some()) {
            return Vec::new();
        }
        self.rows.iter().map(|row| row.twin(key)).collect()
    }

    /// How long the script works on one step for all limits.
    fn weight(&self, twins: &[Option<Arc<dyn Twin>>]) -> usize {
        let weight = |(limit, row): (usize, &RowInfo)| {
            let twin = row.twin(twins.get(limit).and_then(Option::as_ref));
            twin.map_or(1, |twin| usize::from(twin.weight()).max(1))
        };
        self.infos().iter().enumerate().map(weight).sum()
    }

    fn params(&self, limit: usize, twins: &[Option<Arc<dyn Twin>>], cost: u64, params: &mut Vec<u64>) {
        let row = &self.infos()[limit];
        if let Some(twin) = row.twin(twins.get(limit).and_then(Option::as_ref)) {
            twin.params(cost, params);
        }
        params.push(u64::from(row.shadow));
    }

    fn takes_short_cut(&self, twins: &[Option<Arc<dyn Twin>>], ask: AcquireOptions) -> bool {
        let [row] = self.infos() else { return false };
        let twin = row.twin(twins.first().and_then(Option::as_ref));
        row.kernel.fast_path().is_some() && twin.is_some_and(|twin| twin.uses_fast_path(ask))
    }

    fn decision(&self, operation: Operation, twins: &[Option<Arc<dyn Twin>>], ask: AcquireOptions) -> Arc<Shape> {
        if let Some((known, cost, max_delay, shape)) = self.shape.load().as_deref()
            && twins.is_empty()
            && *known == operation
            && *cost == ask.cost
            && *max_delay == ask.max_delay
        {
            return Arc::clone(shape);
        }
        let mut params = Vec::new();
        for limit in 0..self.rows.len() {
            self.params(limit, twins, ask.cost, &mut params);
        }
        let second = match operation {
            Operation::Hold => Some(self.lines.core.trade.holds.expiry),
            _ => ask.max_delay,
        };
        let second = second.map_or(-1, |second| i64::try_from(micros_floor(second)).unwrap_or(i64::MAX));
        let uses_fast_path = operation == Operation::Acquisition && self.takes_short_cut(twins, ask);
        let shape = Shape { operation, limit: 0, first: ask.cost, second, cost: ask.cost, params, uses_fast_path };
        let shape = Arc::new(shape);
        if twins.is_empty() {
            self.shape.store(Some(Arc::new((operation, ask.cost, ask.max_delay, Arc::clone(&shape)))));
        }
        shape
    }

    /// An operation on one limit.
    fn operation(
        &self,
        what: Operation,
        limit: usize,
        twins: &[Option<Arc<dyn Twin>>],
        cost: u64,
        first: u64,
    ) -> Option<Arc<Shape>> {
        let row = &self.infos()[limit];
        let twin = row.twin(twins.get(limit).and_then(Option::as_ref))?;
        Some(Arc::new(operation(what, limit, row, twin, cost, first)))
    }

    fn order(
        &self,
        key: &Key,
        twins: Vec<Option<Arc<dyn Twin>>>,
        steps: Steps,
        reply: oneshot::Sender<Answer>,
    ) -> Result<Order, Error> {
        let (keys, key_ends) = self.encode(key)?;
        let weight = self.weight(&twins);
        Ok(Order { steps, keys, key_ends, twins, weight, reply })
    }

    fn ask(&self, operation: Operation, key: &Key, mut ask: AcquireOptions) -> Result<RedisFuture, Error> {
        if ask.hold {
            ask.max_delay = Some(Duration::ZERO);
        }
        self.lines.decide(|reply| {
            let twins = self.twins(key);
            let shape = self.decision(operation, &twins, ask);
            self.order(key, twins, Steps::Decide(ask, shape), reply)
        })
    }

    fn hold(&self, key: &Key, ask: AcquireOptions) -> Result<RedisFuture, Error> {
        let lines = Arc::clone(&self.lines);
        let twins = self.twins(key);
        let shape = self.decision(Operation::Hold, &twins, ask);
        let (keys, key_ends) = self.encode(key)?;
        let weight = self.weight(&twins);
        let timer = sleep(self.lines.core.deadline).ok_or_else(no_runtime)?;
        let send = move || {
            lines.push(|reply| {
                let steps = Steps::Hold(ask, Arc::clone(&shape), None);
                let (keys, key_ends) = (keys.clone(), key_ends.clone());
                Ok(Order { steps, keys, key_ends, twins: twins.clone(), weight, reply })
            })
        };
        let (first, lines) = (send()?, Arc::clone(&self.lines));
        let deadline = lines.core.deadline;
        let held = async move {
            match first.await.map_err(|_| lost())?? {
                // Nothing is held: what the process had held before has expired.
                Done::SessionExpired => outcome(&lines, send()?.await.map_err(|_| lost())??),
                done => outcome(&lines, done),
            }
        };
        let server = self.lines.core.server.clone();
        Ok(RedisFuture::hold(async move {
            match select(pin!(held), pin!(timer)).await {
                Either::Left((held, _)) => held,
                // Dropped now, what was not sent never will be, and what is held is released when that is known.
                Either::Right(_) => Err(Error::unavailable(format!(
                    "hold failed: Redis ({}) did not answer within the deadline of {deadline:?}; the cost may stay held until the                      hold expires",
                    server.describe()
                ))),
            }
        }))
    }

    fn operate(&self, key: &Key, twins: Vec<Option<Arc<dyn Twin>>>, shapes: Vec<Arc<Shape>>) -> LimiterFuture<()> {
        if shapes.is_empty() {
            return LimiterFuture::ready(Ok(()));
        }
        self.lines.operate(|reply| self.order(key, twins, Steps::Operate(shapes), reply))
    }

    /// What its limits are.
    fn infos(&self) -> &[RowInfo] {
        &self.lines.core.trade.rows
    }
}

impl<Key: ?Sized> Limiter<Key> for Redis<Key> {
    type Future = RedisFuture;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<RedisFuture> {
        let asked =
            if ask.hold { self.handle.hold(key, ask) } else { self.handle.ask(Operation::Acquisition, key, ask) };
        match asked {
            Ok(future) => Acquisition::Pending(future),
            Err(error) => Acquisition::Ready(Err(error)),
        }
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        match self.handle.ask(Operation::Peek, key, ask) {
            Ok(future) => LimiterFuture::pending(async move { future.await.map(|outcome| outcome.decision) }),
            Err(error) => LimiterFuture::ready(Err(error)),
        }
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let twins = self.handle.twins(key);
        let (limit, what, cost, argument) = match operation {
            AdminOperation::SetUsage { limit, used } => (limit, Operation::Set, used, used),
            AdminOperation::Block { limit, duration } => {
                (limit, Operation::Block, 0, micros_floor(duration).min(MAX_PERIOD_MICROS))
            }
            AdminOperation::Reset => {
                let all = 0..self.handle.rows.len();
                let shapes =
                    all.filter_map(|limit| self.handle.operation(Operation::Reset, limit, &twins, 0, 0)).collect();
                return self.handle.operate(key, twins, shapes);
            }
        };
        match self.handle.limit(limit) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(limit) => {
                let shape = self.handle.operation(what, limit, &twins, cost, argument);
                self.handle.operate(key, twins, shape.into_iter().collect())
            }
        }
    }
}

impl<Key: ?Sized> Clone for Redis<Key> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<Key: ?Sized> fmt::Debug for Redis<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<_> = self.handle.infos().iter().map(|row| row.name.as_str()).collect();
        f.debug_struct("Redis")
            .field("server", &self.handle.lines.core.server)
            .field("limits", &limits)
            .field("deadline", &self.handle.lines.core.deadline)
            .finish_non_exhaustive()
    }
}
