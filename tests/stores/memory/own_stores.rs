//! Limits in a store of your own: a map of bytes decides as `Memory`, and `check_store` finds the mistakes of stores.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::limiter::{AdminOperation, LimiterFuture, Outcome};
use tower_ratelimit::store::{StoreLimit, StoreLimits, StoreTransaction, StoreWrite};
use tower_ratelimit::test_util::{StoreReport, TestKey, check_store};
use tower_ratelimit::{
    AcquireOptions, BlockReason, Clock, Decision, Error, FixedWindow, Gcra, InFlight, LazySnapshot, Limit,
    LimitSnapshot, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow, Timestamp, per_key,
};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Removes no state.
    KeepsAll,
    /// Writes states that have changed since they were read.
    LosesUpdates,
    /// Removes states after half of their time.
    ExpiresEarly,
    /// Writes the state of the first limit only.
    ChargesFirstLimit,
    /// Removes a state a microsecond too early.
    ExpiresMicrosecondEarly,
    /// Writes the states one after another.
    SwapsSeparately,
}

/// The states with the times at which each expires.
type Rows = HashMap<String, (Vec<u8>, Timestamp)>;

#[derive(Clone)]
struct MapStore {
    limits: Arc<StoreLimits<TestKey>>,
    rows: Arc<Mutex<Rows>>,
    clock: ManualClock,
    mistake: Mistake,
}

impl MapStore {
    async fn run<T>(
        self,
        transaction: StoreTransaction,
        step: impl Fn(&StoreTransaction, &[Option<Vec<u8>>], Timestamp) -> Result<(T, Vec<Option<StoreWrite>>), Error>,
    ) -> Result<T, Error> {
        loop {
            let (read, now) = (self.read(transaction.keys()), self.clock.now());
            let (result, writes) = step(&transaction, &read, now)?;
            // Here a request to a server would let other calls run.
            tokio::task::yield_now().await;
            if self.mistake == Mistake::SwapsSeparately {
                let mut swapped = true;
                for (index, write) in writes.into_iter().enumerate().rev() {
                    swapped &= self.swap(&transaction.keys()[index..=index], &read[index..=index], vec![write]);
                    tokio::task::yield_now().await;
                }
                if swapped {
                    return Ok(result);
                }
            } else if self.swap(transaction.keys(), &read, writes) {
                return Ok(result);
            }
        }
    }

    fn read(&self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        let (mut rows, now) = (self.rows.lock().expect("no panic"), self.clock.now());
        if self.mistake != Mistake::KeepsAll {
            rows.retain(|_, (_, expires_at)| *expires_at > now);
        }
        keys.iter().map(|key| rows.get(key).map(|(state, _)| state.clone())).collect()
    }

    fn swap(&self, keys: &[String], read: &[Option<Vec<u8>>], writes: Vec<Option<StoreWrite>>) -> bool {
        let (present, now) = (self.read(keys), self.clock.now());
        if present != read && self.mistake != Mistake::LosesUpdates {
            return false;
        }
        let mut rows = self.rows.lock().expect("no panic");
        let written = if self.mistake == Mistake::ChargesFirstLimit { 1 } else { keys.len() };
        for (key, write) in keys.iter().zip(writes).take(written) {
            let Some(StoreWrite { state, expires_at, .. }) = write else { continue };
            let expires_at = match self.mistake {
                Mistake::ExpiresEarly => now.saturating_add(expires_at.saturating_since(now) / 2),
                Mistake::ExpiresMicrosecondEarly => Timestamp::from_micros(expires_at.as_micros().saturating_sub(1)),
                _ => expires_at,
            };
            rows.insert(key.clone(), (state, expires_at));
        }
        true
    }
}

impl Limiter<TestKey> for MapStore {
    fn acquire(&self, key: &TestKey, options: AcquireOptions) -> LimiterFuture<Outcome> {
        match self.limits.transaction(key, options) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(transaction) => {
                let run = self.clone().run(transaction, StoreTransaction::decide);
                LimiterFuture::pending(async { run.await.map(Outcome::from) })
            }
        }
    }

    fn peek(&self, key: &TestKey, options: AcquireOptions) -> LimiterFuture<Decision> {
        match self.limits.transaction(key, options) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(transaction) => LimiterFuture::pending(self.clone().run(transaction, |transaction, states, now| {
                transaction.peek(states, now).map(|decision| (decision, Vec::new()))
            })),
        }
    }

    fn administer(&self, key: &TestKey, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let done = self.limits.transaction(key, AcquireOptions::default()).and_then(|transaction| {
            let states = self.read(transaction.keys());
            let writes = transaction.administer(&states, self.clock.now(), operation)?;
            assert!(self.swap(transaction.keys(), &states, writes));
            Ok(())
        });
        LimiterFuture::ready(done)
    }
}

fn check(mistake: Mistake) -> Result<StoreReport, tower_ratelimit::response::BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(check_store(|limits, clock| {
        let (limits, rows) = (Arc::new(limits), Arc::default());
        std::future::ready(Ok(MapStore { limits, rows, clock, mistake }))
    }))
}

#[test]
fn map_of_bytes_decides_as_memory_whether_it_removes_expired_states_or_not() {
    for mistake in [Mistake::None, Mistake::KeepsAll] {
        let report = check(mistake).unwrap_or_else(|violation| panic!("{mistake:?}: {violation}"));
        let StoreReport { allowed, delayed, denied, borrowed, peeks, operations, .. } = report;
        assert!(borrowed > 50, "{report:?}");
        assert!(allowed > 1_000 && delayed > 50 && denied > 1_000 && peeks > 300 && operations > 150, "{report:?}");
    }
}

#[test]
fn check_store_finds_the_mistakes_of_stores() {
    let mistakes = [
        (Mistake::LosesUpdates, "concurrent calls are not atomic"),
        (Mistake::ExpiresEarly, "the store decides otherwise than `Memory`"),
        (Mistake::ExpiresMicrosecondEarly, "the store decides otherwise than `Memory`"),
        (Mistake::SwapsSeparately, "limits are not charged together"),
        (Mistake::ChargesFirstLimit, "the store decides otherwise than `Memory`"),
    ];
    for (mistake, expected) in mistakes {
        let violation = check(mistake).expect_err("the store has a mistake").to_string();
        assert!(violation.starts_with(expected), "{mistake:?}: {violation}");
    }
}

/// The documented layout, written without the library.
fn state(name: &str, words: &[u64]) -> Vec<u8> {
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let hash = name
        .as_bytes()
        .iter()
        .chain(&body)
        .fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    [&[1][..], &hash.to_le_bytes(), &body].concat()
}

fn limits<L: tower_ratelimit::store::IntoStoreLimits<str>>(limits: L) -> StoreLimits<str> {
    StoreLimits::new(limits).expect("limits that a store of bytes can keep")
}

/// Charges one at a time, and returns the keys and the new states.
fn charge(limits: &StoreLimits<str>, key: &str, micros: u64) -> (Vec<String>, Vec<StoreWrite>) {
    let transaction = limits.transaction(key, AcquireOptions::default()).expect("a transaction");
    let states = vec![None::<Vec<u8>>; transaction.keys().len()];
    let (decision, writes) = transaction.decide(&states, Timestamp::from_micros(micros)).expect("no state is invalid");
    assert!(decision.is_allowed());
    (transaction.keys().to_vec(), writes.into_iter().map(|write| write.expect("each limit is charged")).collect())
}

#[test]
fn keys_and_states_have_the_documented_layout() {
    let quota = Quota::new(4, Duration::from_secs(2));
    let limits = limits((
        Limit::new("bucket, of all", Gcra::new(quota)).keyed_by(|_: &str| ()),
        FixedWindow::new(quota),
        Limit::new("log", SlidingLog::new(quota)),
        Limit::new("blocks", SlidingWindow::new(quota).blocks(2)),
    ));
    let (keys, writes) = charge(&limits, "alice:7", 1_000_000);
    assert_eq!(
        keys,
        [
            "1:bucket%2C%20of%20all:bucket1:",
            "1:default:fixed_window3:alice%3A7",
            "1:log:sliding_log2:alice%3A7",
            "1:blocks:sliding_window2:alice%3A7",
        ]
    );
    // Half a second for each token; the rate is one token in 500 000 microseconds.
    assert_eq!(writes[0].expires_at, Timestamp::from_micros(1_500_000));
    assert_eq!(writes[2].state, state("sliding_log2", &[0, 0, 3_000_000, 2_000_000, 4, 0, 0, 1_000_000, 1_000_000, 1]));
    assert_eq!(writes[2].expires_at, Timestamp::from_micros(3_000_000));
    for (key, write) in keys.iter().zip(&writes) {
        let words: Vec<_> =
            write.state[5..].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        assert_eq!(write.state, state(key.split(':').nth(2).expect("the name"), &words));
        assert_eq!((words[0], words[1], words[2]), (0, 0, write.expires_at.as_micros()));
    }
    // A long sub-key is hashed.
    let (keys, _) = charge(&limits, &"x".repeat(129), 1_000_000);
    assert!(keys[1].starts_with("1:default:fixed_window3:#") && keys[1].len() == 25 + 64, "{keys:?}");
}

#[test]
fn a_state_with_any_other_byte_is_an_error() {
    let quota = Quota::new(4, Duration::from_secs(2));
    let limits = limits((Gcra::new(quota), Limit::new("log", SlidingLog::new(quota))));
    let (_, writes) = charge(&limits, "alice", 1_000_000);
    let transaction = limits.transaction("alice", AcquireOptions::default()).expect("a transaction");
    let now = Timestamp::from_micros(1_100_000);
    let is_error = |states: [&[u8]; 2]| {
        let states = states.map(Some);
        let Err(error) = transaction.decide(&states, now) else { panic!("the states are invalid: {states:?}") };
        assert!(
            error.is_unavailable() && error.to_string().contains("reading the state of a key under limit"),
            "{error}"
        );
        assert!(transaction.peek(&states, now).is_err());
        let block =
            AdminOperation::Block { limit: "default", duration: Duration::ZERO, reason: BlockReason::default() };
        assert!(transaction.administer(&states, now, block).is_err() || states[1] != Some(&writes[1].state));
    };
    for (index, write) in writes.iter().enumerate() {
        let other = &*writes[1 - index].state;
        let with = |state: &[u8]| is_error(if index == 0 { [state, other] } else { [other, state] });
        for byte in 0..write.state.len() {
            for change in [1, 0x10, 0x80, 0xFF] {
                let mut state = write.state.clone();
                state[byte] ^= change;
                with(&state);
            }
            with(&write.state[..byte]);
        }
        with(&[&*write.state, &[0]].concat());
        // The state of the other limit.
        with(other);
    }
    let unsorted = state("sliding_log2", &[0, 0, 9, 9, 5, 0, 0, 0, 5, 1, 4, 1]);
    is_error([&writes[0].state, &unsorted]);
    is_error([&writes[0].state, &state("sliding_log2", &vec![1; 2 + 6 + 2 * StoreLimits::<str>::MAX_HITS + 2])]);
}

#[test]
fn the_longest_log_has_the_documented_length() {
    let most = u64::try_from(StoreLimits::<str>::MAX_HITS).expect("a limit");
    let log = limits(SlidingLog::new(Quota::per_hour(most)));
    let transaction = log.transaction("alice", AcquireOptions::default()).expect("a transaction");
    let mut state = [None];
    for hit in 1..=most {
        let (decision, mut writes) = transaction.decide(&state, Timestamp::from_micros(hit)).expect("a state");
        assert!(decision.is_allowed());
        state = [writes.remove(0).map(|write| write.state)];
    }
    let (decision, writes) = transaction.decide(&state, Timestamp::from_micros(most + 1)).expect("a state");
    assert_eq!((decision.is_allowed(), writes), (false, vec![None]));
    assert_eq!(state[0].as_ref().map(Vec::len), Some(StoreLimits::<str>::MAX_STATE_BYTES));

    let blocks = limits(SlidingWindow::new(Quota::per_hour(1_000_000)).blocks(60));
    let transaction = blocks.transaction("alice", AcquireOptions::default()).expect("a transaction");
    let mut state = [None];
    for minute in 0..200 {
        let now = Timestamp::from_micros(minute * 60_000_000);
        state = [transaction.decide(&state, now).expect("a state").1.remove(0).map(|write| write.state)];
        assert!(state[0].as_ref().is_some_and(|state| state.len() < 600));
    }
}

/// An algorithm without a name for its states.
#[derive(Debug)]
struct Unnamed;

impl Algorithm for Unnamed {
    type State = [u64; 1];

    fn decide(&self, state: &[u64; 1], _: Timestamp, _: ChargeOptions) -> Step<[u64; 1]> {
        Step::Allow { next: *state, delay: 0 }
    }

    fn snapshot(&self, _: &[u64; 1], _: Timestamp) -> LazySnapshot {
        LimitSnapshot::new(1, None).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::ZERO
    }
}

fn message<T: Debug>(result: Result<T, Error>, is_kind: fn(&Error) -> bool) -> String {
    let error = result.expect_err("an error");
    assert!(is_kind(&error), "{error}");
    error.to_string()
}

#[test]
fn limits_that_a_store_of_bytes_cannot_keep_are_errors_when_they_are_built() {
    let quota = Quota::per_second(1_001);
    let error = message(StoreLimits::<str>::new(InFlight::new(3)), Error::is_config);
    assert!(error.contains("cannot count requests in flight"), "{error}");
    let error = message(StoreLimits::<str>::new(SlidingLog::new(quota)), Error::is_config);
    assert!(error.contains("have up to 1001 hits") && error.contains("use a `SlidingWindow`"), "{error}");
    let error = message(StoreLimits::<str>::new(Unnamed), Error::is_config);
    assert!(error.contains("set `Algorithm::STATE_NAME`"), "{error}");
    let error = message(StoreLimits::<str>::new((Gcra::new(quota), Gcra::new(quota))), Error::is_config);
    assert!(error.contains("two limits are named"), "{error}");
    let none: Vec<StoreLimit<str>> = Vec::new();
    assert!(message(StoreLimits::new(none), Error::is_config).starts_with("no limits"));
    // The tier is known only with the key.
    let tiers = limits(per_key(move |key: &str| SlidingLog::new(Quota::per_second(key.len() as u64 * 1_000))));
    assert!(tiers.transaction("a", AcquireOptions::default()).is_ok());
    let error = message(tiers.transaction("aa", AcquireOptions::default()), Error::is_config);
    assert!(error.contains("have up to 2000 hits"), "{error}");
}

#[test]
fn transactions_reject_holds_and_wrong_numbers_of_states_and_unknown_limits() {
    let limits = limits(Gcra::new(Quota::per_second(1)));
    let error = message(limits.transaction("a", AcquireOptions::default().hold()), Error::is_unsupported);
    assert!(error.starts_with("holding a cost failed"), "{error}");
    let transaction = limits.transaction("a", AcquireOptions::default()).expect("a transaction");
    let none: [Option<Vec<u8>>; 0] = [];
    let error = message(transaction.decide(&none, Timestamp::EPOCH), Error::is_config);
    assert!(error.contains("0 states for 1 keys"), "{error}");
    let operation = AdminOperation::SetUsage { limit: "other", used: 1 };
    let error = message(transaction.administer(&[None::<Vec<u8>>], Timestamp::EPOCH, operation), Error::is_config);
    assert!(error.contains(r#"no limit named "other""#), "{error}");
}
