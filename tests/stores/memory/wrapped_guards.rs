//! Limiters around other limiters, which wrap each guard: what the guard inside holds is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_ratelimit::limiter::{Chained, Held, LimiterFuture, Outcome, Reservation};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Decision, Detail, Error, FixedWindow, Gcra, InFlight, Limit, Limiter,
    ManualClock, Quota,
};

use crate::immediate::boxed_limits;
use crate::random::Random;

type Key = u64;

/// How a limiter around another one returns the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrap {
    /// With [`Held::map_settle`].
    Mapped,
    /// In a new guard of the same cost.
    Rebuilt,
    /// Not at all.
    Dropped,
}

/// A limiter around another one, which counts settlements.
#[derive(Clone)]
struct Counting<L> {
    limiter: L,
    wrap: Wrap,
    settlements: Arc<AtomicU64>,
}

impl<L> Counting<L> {
    fn new(limiter: L, wrap: Wrap) -> Self {
        Self { limiter, wrap, settlements: Arc::default() }
    }

    fn wrap(&self, held: Held) -> Option<Held> {
        let settlements = Arc::clone(&self.settlements);
        let settle = move |held: Held, actual: Costs| {
            settlements.fetch_add(1, Ordering::Relaxed);
            held.settle(actual)
        };
        match self.wrap {
            Wrap::Mapped => Some(held.map_settle(settle)),
            Wrap::Rebuilt => Some(Held::new(held.cost(), move |actual| settle(held, actual.into()))),
            Wrap::Dropped => None,
        }
    }
}

impl<L: Limiter<Key>> Limiter<Key> for Counting<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let Ok(acquired) = self.limiter.acquire(key, options).try_ready() else { panic!("memory is ready") };
        LimiterFuture::ready(acquired.map(|Outcome { decision, held, .. }| {
            let held = held.and_then(|held| self.wrap(held));
            Outcome::new(decision, held)
        }))
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.limiter.peek(key, options)
    }
}

/// Requests with a fixed cost, tokens that are settled, and requests in flight.
fn three_limits(clock: &ManualClock) -> BoxLimiter<Key> {
    let limits = (
        Limit::new("requests", FixedWindow::new(Quota::per_hour(1000))).fixed_cost(1),
        Limit::new("tokens", Gcra::new(Quota::per_hour(3600)).burst(40)),
        Limit::new("streams", InFlight::new(6)).fixed_cost(1),
    );
    boxed_limits(limits, clock)
}

/// A limit that denies about every second request.
fn scarce(clock: &ManualClock) -> BoxLimiter<Key> {
    let limits = (
        Limit::new("scarce", Gcra::new(Quota::per_second(1)).burst(6)),
        Limit::new("calls", FixedWindow::new(Quota::per_minute(20))).fixed_cost(1),
    );
    boxed_limits(limits, clock)
}

fn try_acquire(limiter: &BoxLimiter<Key>, options: AcquireOptions) -> Result<Outcome, Error> {
    limiter.acquire(&1, options).try_ready().expect("memory is ready")
}

/// The numbers of all limits.
fn statuses(limiter: &BoxLimiter<Key>) -> String {
    let decision = limiter.peek(&1, AcquireOptions::cost(0).detail(Detail::All)).try_ready().expect("ready");
    format!("{:?}", decision.expect("a decision").limits())
}

fn end(held: Option<Held>, how: u64) {
    let Some(held) = held else { return };
    match how {
        0 => drop(held),
        1 => held.release().try_ready().expect("ready").expect("released"),
        actual => held.settle(actual - 2).try_ready().expect("ready").expect("settled"),
    }
}

/// The law: around any limiter, in any place of a chain, a limiter that maps guards changes no number. Returns how many
/// requests were allowed and denied.
fn check_law(seed: u64, bare: &BoxLimiter<Key>, wrapped: &BoxLimiter<Key>, clock: &ManualClock) -> [u64; 2] {
    let mut random = Random(seed);
    let (mut flights, mut counts) = (Vec::new(), [0, 0]);
    for step in 0..80 {
        match random.below(6) {
            0..=2 => {
                let options = AcquireOptions::cost(random.below(7)).keep_guard();
                let options = if random.below(2) == 0 { options.hold() } else { options };
                let [one, other] = [bare, wrapped].map(|limiter| try_acquire(limiter, options).expect("whole guards"));
                assert_eq!(one.decision.is_allowed(), other.decision.is_allowed(), "seed {seed}, step {step}");
                assert_eq!(one.held.is_some(), other.held.is_some(), "seed {seed}, step {step}");
                counts[usize::from(!one.decision.is_allowed())] += 1;
                flights.push((one.held, other.held));
            }
            3 | 4 if !flights.is_empty() => {
                let (one, other) =
                    flights.swap_remove(usize::try_from(random.below(flights.len() as u64)).expect("small"));
                let how = random.below(9);
                end(one, how);
                end(other, how);
            }
            _ => clock.advance(std::time::Duration::from_millis(random.below(4000))),
        }
        assert_eq!(statuses(bare), statuses(wrapped), "seed {seed}, step {step}");
    }
    counts
}

#[test]
fn mapped_guard_holds_and_settles_as_the_guard_inside() {
    let mut counts = [0, 0];
    for seed in 0..120 {
        let clock = ManualClock::new();
        let (three, other_three) = (three_limits(&clock), three_limits(&clock));
        let (few, other_few) = (scarce(&clock), scarce(&clock));
        let mapped = |limiter| BoxLimiter::new(Counting::new(limiter, Wrap::Mapped));
        let (bare, wrapped) = match seed % 4 {
            0 => (three, mapped(other_three)),
            1 => (BoxLimiter::new(Chained::new(three, few)), {
                BoxLimiter::new(Chained::new(mapped(other_three), other_few))
            }),
            2 => (BoxLimiter::new(Chained::new(few, three)), {
                BoxLimiter::new(Chained::new(mapped(other_few), mapped(other_three)))
            }),
            _ => (BoxLimiter::new(Chained::new(three, few)), {
                mapped(BoxLimiter::new(Chained::new(mapped(other_three), other_few)))
            }),
        };
        let [allowed, denied] = check_law(seed, &bare, &wrapped, &clock);
        counts = [counts[0] + allowed, counts[1] + denied];
    }
    assert!(counts[0] > 1_000 && counts[1] > 1_000, "{counts:?}");
}

#[test]
fn mapped_guard_settles_once_in_each_way() {
    let clock = ManualClock::new();
    for how in [0, 1, 5] {
        let counting = Counting::new(three_limits(&clock), Wrap::Mapped);
        let settlements = Arc::clone(&counting.settlements);
        let limiter = BoxLimiter::new(counting);
        let held = try_acquire(&limiter, AcquireOptions::cost(4).hold()).expect("an answer").held;
        assert_eq!(held.as_ref().map(Held::cost), Some(4));
        end(held, how);
        assert_eq!(settlements.load(Ordering::Relaxed), 1, "{how}");
        // Nothing is settled, so nothing is mapped.
        let held = try_acquire(&limiter, AcquireOptions::cost(4).keep_guard()).expect("an answer").held;
        assert!(held.is_some());
        end(held, how);
        assert_eq!(settlements.load(Ordering::Relaxed), 1, "{how}");
    }
}

/// A denied chain charges no fixed cost, and no chain accepts a guard that holds less than the limiter inside.
#[test]
fn guard_without_its_parts_is_an_error_of_a_chain_that_charges_nothing() {
    for wrap in [Wrap::Mapped, Wrap::Rebuilt, Wrap::Dropped] {
        let clock = ManualClock::new();
        let three = three_limits(&clock);
        let idle = statuses(&three);
        // The second limiter denies each request.
        let empty = scarce(&clock);
        drop(try_acquire(&empty, AcquireOptions::cost(6)));
        let chain = BoxLimiter::new(Chained::new(Counting::new(three.clone(), wrap), empty));
        for _ in 0..10 {
            let denied = try_acquire(&chain, AcquireOptions::cost(2).keep_guard());
            match wrap {
                Wrap::Mapped => {
                    assert!(!denied.expect("a decision").decision.is_allowed());
                    assert_eq!(statuses(&three), idle);
                }
                Wrap::Rebuilt | Wrap::Dropped => assert!(denied.expect_err("no whole guard").is_config(), "{wrap:?}"),
            }
        }
        // The second limiter holds until the end.
        let chain = BoxLimiter::new(Chained::new(scarce(&clock), Counting::new(three_limits(&clock), wrap)));
        let before = statuses(&chain);
        let outcome = try_acquire(&chain, AcquireOptions::cost(2).keep_guard());
        assert_eq!(outcome.is_ok(), wrap == Wrap::Mapped, "{wrap:?}");
        if let Err(error) = outcome {
            assert!(error.is_config() && error.to_string().contains("map_settle"), "{error}");
            assert!(before.contains("scarce") && statuses(&chain).contains("remaining: 6"), "the first is released");
        }
    }
}

#[tokio::test]
async fn reservation_without_the_parts_of_its_guard_is_an_error() {
    let clock = ManualClock::new();
    for wrap in [Wrap::Mapped, Wrap::Rebuilt, Wrap::Dropped] {
        let limiter = Counting::new(three_limits(&clock), wrap);
        let reserved = Reservation::reserve(&limiter, &1, AcquireOptions::cost(2)).await;
        assert_eq!(reserved.is_ok(), wrap == Wrap::Mapped, "{wrap:?}");
    }
}

/// A custom limit on requests in flight.
#[test]
fn guard_of_a_custom_limit_in_flight_is_released_once() {
    for how in [0, 1, 7] {
        let ended = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ended);
        let held = Held::until_end(1, move || {
            count.fetch_add(1, Ordering::Relaxed);
            LimiterFuture::ready(Ok(()))
        });
        let held = held.map_settle(|_, _| panic!("nothing is settled"));
        assert_eq!((held.cost(), ended.load(Ordering::Relaxed)), (1, 0));
        end(Some(held), how);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }
}
