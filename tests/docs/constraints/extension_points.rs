//! A program of another crate that extends each extension point. `hidden_items` checks that it names no hidden item.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::future::ready;
use std::hash::BuildHasherDefault;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::key::{EncodeKey, Extracted, KeyWriter, MissingKey};
use tower_ratelimit::limiter::{AdminOperation, Held, LimiterFuture, LimitsOfKey, Observed, Outcome};
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::response::Rejection;
use tower_ratelimit::retry::gate::{GateKey, ReadGateSignal};
use tower_ratelimit::retry::gate::{GateLayer, GateSignal};
use tower_ratelimit::retry::{RetryAfter, RetryHint};
use tower_ratelimit::store::{RedisLimit, StoreLimit, StoreLimits, StoreWrite};
use tower_ratelimit::test_util::check_store;
use tower_ratelimit::{
    AcquireOptions, Clock, Costs, Decision, Detail, DynLimit, Error, ExtractKey, FixedWindow, LazySnapshot, Limit,
    LimitSnapshot, Limiter, ManualClock, Memory, Quota, RateLimitLayer, Respond, Timestamp, Verdict,
};

/// An algorithm: after each request, none is allowed for the given time.
#[derive(Debug)]
struct CoolDown(Duration);

impl Algorithm for CoolDown {
    type State = [u64; 1];

    const STATE_NAME: &'static str = "cool_down1";

    fn decide(&self, &[open_at]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
        let wait = Timestamp::from_micros(open_at).saturating_since(now);
        if !options.is_forced() && options.cost > 1 {
            Step::Exceeds
        } else if !options.is_forced() && !wait.is_zero() && wait <= self.0 {
            Step::deny_for(wait)
        } else {
            let start = now.saturating_add(options.forced_delay());
            Step::Allow { next: [start.saturating_add(self.0).as_micros()], delay: 0 }
        }
    }

    fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
        let wait = Timestamp::from_micros(open_at).saturating_since(now);
        let remaining = u64::from(wait.is_zero());
        LimitSnapshot::new(1, self.0).with_remaining(remaining).with_reset(wait).with_next_token_after(wait).into()
    }

    fn max_reset(&self) -> Duration {
        self.0
    }
}

impl LuaAlgorithm for CoolDown {
    const SCRIPT: LuaScript = LuaScript::new(
        "cool_down1",
        "local function peek(s, now, max_delay, p)
           if p[2] > 1 then return -1 end
           local wait = s[1] - now
           if wait <= 0 or wait > p[1] then return 0 end
           return wait
         end
         local function commit(s, now, delay, p) s[1] = now + delay + p[1] end
         local function charge(s, now, cost, p) s[1] = now + p[1] end
         return { words = 1, params = 2, supports_scheduling = false, peek = peek, commit = commit, charge = charge }",
    );

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX), cost]);
    }
}

/// A key that shared stores can encode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Tenant(u32);

impl EncodeKey for Tenant {
    fn encode(&self, key: &mut KeyWriter) {
        ("tenant", self.0).encode(key);
    }
}

/// A request, and the key extractor of its key.
#[derive(Clone)]
struct Call {
    tenant: Option<u32>,
    rows: u64,
}

#[derive(Clone)]
struct ByTenant;

impl ExtractKey<Call> for ByTenant {
    type Key = Tenant;

    fn extract(&self, call: &Call) -> Extracted<Tenant> {
        match call.tenant {
            Some(0) => Extracted::Exempt,
            Some(tenant) => Extracted::Key(Tenant(tenant)),
            None => Extracted::Missing(MissingKey::from_request("the call has no tenant")),
        }
    }

    fn proxy(&self, call: &Call) -> Option<IpAddr> {
        (call.tenant == Some(1)).then_some(IpAddr::from([10, 0, 0, 1]))
    }
}

/// An answer, and the responder that completes it.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    text: String,
    remaining: Option<u64>,
}

#[derive(Clone)]
struct AddRemaining;

impl Respond<Call, Answer, Infallible> for AddRemaining {
    type Response = Answer;
    type Context = Option<u64>;

    fn detail(&self) -> Detail {
        Detail::All
    }

    fn client_timeout(&self, _call: &Call) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn on_allowed(&self, _call: &mut Call, decision: Option<&Decision>) -> Option<u64> {
        decision?.remaining()
    }

    fn map_response(remaining: Option<u64>, answer: Answer) -> Answer {
        Answer { remaining, ..answer }
    }

    fn on_rejected(&self, _call: Call, rejection: Rejection) -> Result<Answer, Infallible> {
        Ok(Answer { text: rejection.to_string(), remaining: Some(0) })
    }
}

/// An observer that counts the decisions and the settlements.
#[derive(Default)]
struct Counts {
    decisions: AtomicU64,
    settlements: AtomicU64,
}

impl Observer for Counts {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Decided { .. } => self.decisions.fetch_add(1, Ordering::Relaxed),
            Event::Settled { .. } => self.settlements.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// A clock, in microseconds.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Clock for Ticks {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A limiter with one budget for all keys. It can hold costs, and has an administrative operation.
#[derive(Clone)]
struct Budget(Arc<AtomicU64>);

impl<Key: ?Sized> Limiter<Key> for Budget {
    fn acquire(&self, _key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let cost = options.cost;
        let take = |left: u64| left.checked_sub(cost);
        let verdict = match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Verdict::Allowed,
            Err(_) => Verdict::Denied { retry_after: Duration::from_secs(1) },
        };
        let held = (options.hold && verdict == Verdict::Allowed).then(|| {
            let left = Arc::clone(&self.0);
            Held::new(cost, move |actual| {
                left.fetch_add(cost.saturating_sub(actual), Ordering::Relaxed);
                LimiterFuture::ready(Ok(()))
            })
        });
        LimiterFuture::ready(Ok(Outcome::new(Decision::without_limit(ManualClock::START, verdict), held)))
    }

    fn peek(&self, _key: &Key, _options: AcquireOptions) -> LimiterFuture<Decision> {
        LimiterFuture::unsupported("peek failed: a budget does not support it")
    }

    fn limits_of(&self, _key: &Key, limits: &mut LimitsOfKey<'_>) {
        limits.add("budget", &());
    }

    fn administer(&self, _key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        LimiterFuture::ready(match operation {
            AdminOperation::SetUsage { limit: "budget", used } => {
                self.0.store(10_u64.saturating_sub(used), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Error::unsupported("only the usage of a budget can be set")),
        })
    }
}

/// A store of states, whose limits are those of the crate.
struct MapStore<Key> {
    limits: StoreLimits<Key>,
    states: Mutex<HashMap<String, Vec<u8>>>,
    clock: Arc<dyn Clock>,
}

impl<Key> MapStore<Key> {
    fn new(limits: StoreLimits<Key>, clock: impl Clock) -> Self {
        Self { limits, states: Mutex::default(), clock: Arc::new(clock) }
    }

    fn write(states: &mut HashMap<String, Vec<u8>>, keys: &[String], writes: Vec<Option<StoreWrite>>) {
        states.extend(keys.iter().zip(writes).filter_map(|(key, write)| Some((key.clone(), write?.state))));
    }

    fn decide(&self, key: &Key, options: AcquireOptions) -> Result<Decision, Error> {
        let transaction = self.limits.transaction(key, options)?;
        let mut states = self.states.lock().expect("no thread panics");
        let read: Vec<_> = transaction.keys().iter().map(|key| states.get(key)).collect();
        let (decision, writes) = transaction.decide(&read, self.clock.now())?;
        Self::write(&mut states, transaction.keys(), writes);
        Ok(decision)
    }

    fn change(&self, key: &Key, operation: AdminOperation<'_>) -> Result<(), Error> {
        let transaction = self.limits.transaction(key, AcquireOptions::default())?;
        let mut states = self.states.lock().expect("no thread panics");
        let read: Vec<_> = transaction.keys().iter().map(|key| states.get(key)).collect();
        let writes = transaction.administer(&read, self.clock.now(), operation)?;
        Self::write(&mut states, transaction.keys(), writes);
        Ok(())
    }
}

impl<Key: 'static> Limiter<Key> for MapStore<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::ready(self.decide(key, options).map(Outcome::from))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.limits.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        LimiterFuture::ready(self.change(key, operation))
    }
}

/// What a client's gate reads: the key of its requests, and its responses.
#[derive(Clone)]
struct CallGate;

impl GateKey<Call> for CallGate {
    type Key = Option<u32>;

    fn key(&self, call: &Call) -> Option<u32> {
        call.tenant
    }
}

impl ReadGateSignal<Answer> for CallGate {
    fn read(&self, answer: &Answer) -> GateSignal {
        match answer.remaining {
            Some(0) => GateSignal::Rejected(None),
            remaining => GateSignal::Served { remaining },
        }
    }
}

fn cool_down() -> Limit<CoolDown> {
    Limit::new("cool", CoolDown(Duration::from_secs(3)))
}

async fn answer(call: Call) -> Result<Answer, Infallible> {
    Ok(Answer { text: format!("{} rows", call.rows), remaining: None })
}

#[tokio::test]
async fn layer_of_extensions_only_decides_responds_and_observes() {
    let (clock, counts) = (Ticks::default(), Arc::new(Counts::default()));
    let limits: Vec<DynLimit<Tenant>> = vec![DynLimit::new(cool_down())];
    let limiter = Memory::builder(limits)
        .clock(clock.clone())
        .hasher(BuildHasherDefault::<DefaultHasher>::default())
        .build()
        .expect("valid limits");
    let layer = RateLimitLayer::new(ByTenant, limiter)
        .responder(AddRemaining)
        .exempt_if(|call: &Call| call.rows == 99)
        .observe(Arc::clone(&counts));
    let mut service = ServiceBuilder::new().layer(layer).service(service_fn(answer));
    let mut call = async |tenant, rows| {
        let service = service.ready().await.expect("infallible");
        service.call(Call { tenant, rows }).await.expect("infallible").remaining
    };
    assert_eq!(call(Some(7), 1).await, Some(0), "the first call has used the limit up");
    assert_eq!(call(Some(7), 1).await, Some(0), "denied");
    assert_eq!(call(Some(7), 99).await, None, "exempt by the predicate");
    assert_eq!(call(Some(0), 1).await, None, "exempt by the key extractor");
    assert_eq!(call(None, 1).await, Some(0), "no key");
    assert_eq!(counts.decisions.load(Ordering::Relaxed), 2);
    clock.0.fetch_add(3_000_000, Ordering::Relaxed);
    assert_eq!(call(Some(7), 1).await, Some(0));
    assert_eq!(counts.decisions.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn limiter_of_an_application_is_charged_by_the_cost_policy() {
    let (budget, counts) = (Budget(Arc::new(AtomicU64::new(10))), Arc::new(Counts::default()));
    let layer = RateLimitLayer::new(ByTenant, budget.clone())
        .responder(AddRemaining)
        .cost(|call: &Call| call.rows)
        .settle(|held: u64, result: Result<&Answer, &Infallible>| {
            Costs::from(if result.is_ok() { held / 2 } else { 0 })
        })
        .observe(Arc::clone(&counts));
    let mut service = ServiceBuilder::new().layer(layer).service(service_fn(answer));
    let call = Call { tenant: Some(7), rows: 8 };
    service.ready().await.expect("infallible").call(call.clone()).await.expect("infallible");
    assert_eq!(budget.0.load(Ordering::Relaxed), 6, "half of the held cost is charged");
    assert_eq!(counts.settlements.load(Ordering::Relaxed), 1);

    let observed = Observed::new(budget.clone(), Arc::clone(&counts));
    observed.set_usage("budget", &Tenant(7), 1).await.expect("supported");
    assert!(observed.check(&Tenant(7), AcquireOptions::cost(9)).await.expect("a decision").is_allowed());
    assert!(!observed.check(&Tenant(7), AcquireOptions::cost(1)).await.expect("a decision").is_allowed());
    assert!(observed.reset(&Tenant(7)).await.is_err_and(|error| error.is_unsupported()));
    assert_eq!(counts.decisions.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn store_of_an_application_decides_as_memory() {
    let report = check_store(|limits, clock| ready(Ok(Arc::new(MapStore::new(limits, clock))))).await;
    assert!(report.expect("the store decides as `Memory`").operations > 150);

    let day = Limit::new("day", FixedWindow::new(Quota::per_day(2)));
    let limits = StoreLimits::<Tenant>::new(vec![StoreLimit::new(cool_down()), StoreLimit::new(day)]);
    let (store, tenant) = (MapStore::new(limits.expect("valid limits"), Ticks::default()), Tenant(7));
    assert!(store.decide(&tenant, AcquireOptions::default()).expect("a decision").is_allowed());
    assert!(!store.decide(&tenant, AcquireOptions::default()).expect("a decision").is_allowed());
    store.administer(&tenant, AdminOperation::Reset).await.expect("supported");
    assert!(store.decide(&tenant, AcquireOptions::default()).expect("a decision").is_allowed());
}

#[tokio::test]
async fn extensions_of_clients_and_of_redis_have_their_types() {
    // `redis: holds` and `redis: panics` run algorithms of their own on a server.
    let limits = [RedisLimit::<Tenant>::new(cool_down())];
    assert!(format!("{limits:?}").contains("cool"), "{limits:?}");

    let gate = GateLayer::new().keyed_by(CallGate).with_reader(CallGate);
    let client = ServiceBuilder::new().layer(gate).map_err(BoxError::from).service(service_fn(answer));
    let answer = client.oneshot(Call { tenant: None, rows: 3 }).await;
    assert_eq!(answer.expect("the gate is open").text, "3 rows");

    let read = |_: &Call, answer: &Answer| {
        if answer.remaining == Some(0) { RetryHint::Backoff } else { RetryHint::None }
    };
    let retry = RetryAfter::new().read_responses(read).clone_with(|call: &Call| Some(call.clone()));
    let client = ServiceBuilder::new().retry(retry).service(service_fn(self::answer));
    assert_eq!(client.oneshot(Call { tenant: None, rows: 4 }).await.expect("infallible").text, "4 rows");
}
