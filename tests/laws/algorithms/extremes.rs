//! No input panics: garbage in a state, the first and last timestamps, the largest costs and delays, the slowest and
//! the fastest quotas.

use std::hint::black_box;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog, State as _};
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, LeakyBucket, LeakyQueue, LimitStatus, Quota, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket, Verdict,
};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{Subject, fixed_window, gcra};
use crate::model::{MAX_PERIOD, Spec};
use crate::schedule::{Op, bucket, quota, tiers, window};
use crate::span::{micros, ticks};

const MAX_LIMIT: u64 = 1 << 53;

/// An operation on a state, with any arguments.
#[derive(Clone, Copy, Debug)]
enum Action {
    Peek { now: Timestamp, options: AcquireOptions },
    Charge { now: Timestamp, delay: Duration, cost: u64 },
    PeekWithHeld { now: Timestamp, options: AcquireOptions, held: u64 },
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn bucket_does_not_panic_on_any_state(
        spec in bucket(),
        whole in word(),
        part in word(),
        rate in prop_oneof![word(), packed_rate()],
        written_at in word(),
        actions in actions(),
    ) {
        let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
        let state = [whole, part, rate, written_at];
        apply_actions(&LeakyQueue::new(Quota::new(0, quota.period())), state, &actions);
        apply_actions(&gcra(spec), state, &actions);
        apply_actions(&TokenBucket::new(quota).burst(burst), state, &actions);
        apply_actions(&LeakyBucket::new(quota).burst(burst), state, &actions);
        if let Ok(queue) = LeakyQueue::try_new(quota).and_then(|queue| queue.try_max_waiting(burst - 1)) {
            apply_actions(&queue, state, &actions);
        }
    }

    #[test]
    fn fixed_window_does_not_panic_on_any_state(quota in any_quota(), state in words(14), actions in actions()) {
        let state = <FixedWindow as Algorithm>::State::from_numbers(&state);
        apply_actions(&FixedWindow::new(quota), state.clone(), &actions);
        apply_actions(&FixedWindow::new(quota).aligned_to_clock(), state, &actions);
    }

    #[test]
    fn sliding_log_does_not_panic_on_any_state(
        quota in any_quota(),
        idle_at in word(),
        period in word(),
        hits in vec((word(), word()), 0..6),
        actions in actions(),
    ) {
        if let Ok(algorithm) = SlidingLog::try_new(quota) {
            apply_actions(&algorithm, HitLog::new(idle_at, period, hits.into()), &actions);
        }
    }

    #[test]
    fn sliding_window_does_not_panic_on_any_state(
        quota in any_quota(),
        blocks in 1u64..=60,
        state in words(Counters::MAX_WORDS),
        actions in actions(),
    ) {
        let one_block = SlidingWindow::new(quota).blocks(1);
        let forms = [Ok(one_block), one_block.try_blocks(blocks), one_block.try_weighted()];
        for window in forms.into_iter().flatten() {
            let mut words = Counters::zero(window.counter_words());
            let len = words.len();
            words.copy_from_slice(&state[..len]);
            apply_actions(&window, words, &actions);
        }
    }

    /// The first word of a state is the time from which the key is idle, whatever the other words hold.
    #[test]
    fn state_is_idle_from_its_first_word_on(
        bucket in bucket(),
        window in window(),
        words in words(14),
        later in word(),
        cost in word(),
    ) {
        let state = *words.first_chunk::<4>().expect("four words");
        let now = Timestamp::from_micros(state[0].saturating_add(later));
        let bucket = gcra(bucket);
        let window = fixed_window(window);
        let options = AcquireOptions::cost(cost);
        assert_idle(&bucket, &state, &[0; 4], now, options)?;
        let [state, zero] = [&words[..], &[]].map(<FixedWindow as Algorithm>::State::from_numbers);
        assert_idle(&window, &state, &zero, now, options)?;
    }

    /// The same if the last charge has a later time than the decision.
    #[test]
    fn state_is_idle_from_its_first_word_on_when_the_clock_stepped_back(
        bucket in bucket(),
        window in window(),
        words in words(14),
        now in word(),
        lag in any::<u64>(),
        earlier in word(),
    ) {
        let (bucket, window) = (gcra(bucket), fixed_window(window));
        let options = AcquireOptions::default();
        let state_of = |max_reset| {
            let lag = lag % (micros(max_reset) + 1);
            [now.saturating_sub(earlier), words[1], words[2], now.saturating_add(lag)]
        };
        let now = Timestamp::from_micros(now);
        let state = state_of(bucket.max_reset());
        assert_idle(&bucket, &state, &[0; 4], now, options)?;
        let mut words = words.clone();
        words[..4].copy_from_slice(&state_of(window.max_reset()));
        let [state, zero] = [&words[..], &[]].map(<FixedWindow as Algorithm>::State::from_numbers);
        assert_idle(&window, &state, &zero, now, options)?;
    }

    /// The same through the public API: any schedule, at any time.
    #[test]
    fn limiter_does_not_panic_on_any_schedule(
        buckets in tiers(bucket()),
        windows in tiers(window()),
        start in word(),
        steps in vec((any::<u8>(), word(), word(), word()), 1..40),
    ) {
        let mut subject = Subject::new(&[buckets, windows], start);
        for (kind, a, b, c) in steps {
            let which = usize::from(kind);
            subject.apply(match kind % 10 {
                0..3 => Op::Acquire(options_of((a, Some(Duration::new(b, 0)).filter(|_| kind > 128)))),
                3 => Op::Settle { which, actual: c },
                8 => Op::Hold(AcquireOptions::cost(a)),
                9 => Op::Drop { which },
                4 => Op::Reset,
                5 => Op::Tier(which),
                _ => Op::Clock { now: a },
            });
            let decision = subject.peek(AcquireOptions::cost(c).detail(Detail::All));
            prop_assert_eq!(decision.limits().iter().map(LimitStatus::snapshot).count(), 2);
        }
    }
}

fn assert_idle<A: Algorithm>(
    algorithm: &A,
    state: &A::State,
    zero: &A::State,
    now: Timestamp,
    options: AcquireOptions,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(algorithm.peek(state, now, options), algorithm.peek(zero, now, options));
    prop_assert_eq!(algorithm.snapshot(state, now).compute(), algorithm.snapshot(zero, now).compute());
    Ok(())
}

/// Applies the actions, and peeks after each.
fn apply_actions<A: Algorithm>(algorithm: &A, mut state: A::State, actions: &[Action]) {
    black_box((format!("{algorithm:?}"), algorithm.max_waiting()));
    for &action in actions {
        let (now, options) = match action {
            Action::Peek { now, options } => (now, options),
            Action::Charge { now, delay, cost } => {
                algorithm.charge(&mut state, now, delay, cost);
                (now, AcquireOptions::cost(cost).max_delay(delay))
            }
            Action::PeekWithHeld { now, options, held } => {
                let (verdict, snapshot) = algorithm.peek_with_held(&state, now, options.into(), held);
                black_box((verdict, snapshot.compute()));
                (now, options)
            }
        };
        // `black_box` keeps the compiler from removing unused results.
        black_box((algorithm.peek(&state, now, options), algorithm.snapshot(&state, now).compute()));
    }
}

/// A quota, of which some have no units.
fn any_quota() -> impl Strategy<Value = Quota> {
    (quota(), 0u8..4).prop_map(|(quota, kind)| if kind == 0 { Quota::new(0, quota.period()) } else { quota })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let any_options = || (word(), max_delay()).prop_map(options_of);
    let action = prop_oneof![
        (timestamp(), any_options()).prop_map(|(now, options)| Action::Peek { now, options }),
        (timestamp(), delay(), word()).prop_map(|(now, delay, cost)| Action::Charge { now, delay, cost }),
        (timestamp(), any_options(), word()).prop_map(|(now, options, held)| Action::PeekWithHeld {
            now,
            options,
            held
        }),
    ];
    vec(action, 1..8)
}

fn options_of((cost, max_delay): (u64, Option<Duration>)) -> AcquireOptions {
    AcquireOptions::cost(cost).max_delay(max_delay)
}

fn max_delay() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![Just(None), delay().prop_map(Some)]
}

pub(crate) fn delay() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), word().prop_map(ticks)]
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    word().prop_map(Timestamp::from_micros)
}

fn words(count: usize) -> impl Strategy<Value = Vec<u64>> {
    vec(word(), count)
}

/// Generates any number, often a boundary or a number close to one.
pub(crate) fn word() -> impl Strategy<Value = u64> {
    let near = select(vec![0, 1 << 40, 1_577_836_800_000_000, MAX_PERIOD, MAX_LIMIT, 1 << 58, 1 << 63, u64::MAX]);
    prop_oneof![
        2 => (near, -3i64..=3).prop_map(|(near, off)| near.saturating_add_signed(off)),
        1 => (0u32..64, any::<u64>()).prop_map(|(shift, word)| word >> shift),
    ]
}

/// Generates a rate as a bucket packs it: the number of bits of its tokens, its ticks, its tokens.
fn packed_rate() -> impl Strategy<Value = u64> {
    (1u32..55, any::<u64>()).prop_map(|(bits, word)| u64::from(bits) << 55 | word >> 9)
}

#[test]
fn retry_after_is_exact_for_the_slowest_and_fastest_buckets() {
    let tick = ticks(1);
    let longest = ticks(MAX_PERIOD);
    for (quota, burst) in [
        (Quota::new(1, longest), 1),
        (Quota::new((1 << 32) - 1, tick), MAX_LIMIT),
        (Quota::new((1 << 32) - 1, tick), 1),
        (Quota::new(1, tick), MAX_PERIOD),
        (Quota::new(MAX_PERIOD, longest), MAX_PERIOD),
    ] {
        for start in [0, 1, 1 << 52] {
            let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], start);
            assert_eq!(
                subject.acquire(AcquireOptions::cost(burst)).verdict(),
                Verdict::Allowed,
                "{quota}, burst {burst}"
            );
            let denied = subject.acquire(AcquireOptions::cost(burst));
            let wait = denied.retry_after().expect("a denial");
            assert_eq!(Some(wait), denied.reset(), "{quota}, burst {burst}");
            subject.set_clock(start + micros(wait));
            assert_eq!(
                subject.acquire(AcquireOptions::cost(burst)).verdict(),
                Verdict::Allowed,
                "{quota}, burst {burst}"
            );
            assert_eq!(
                subject.acquire(AcquireOptions::cost(u64::MAX)).verdict(),
                Verdict::ExceedsLimit,
                "{quota}, burst {burst}"
            );
        }
    }
}

#[test]
fn retry_after_is_exact_for_the_largest_fixed_window() {
    let quota = Quota::new(MAX_LIMIT, ticks(MAX_PERIOD));
    for aligned in [false, true] {
        let mut subject = Subject::new(&[vec![Spec::FixedWindow { quota, aligned }]], MAX_PERIOD);
        assert_eq!(subject.acquire(AcquireOptions::cost(MAX_LIMIT)).verdict(), Verdict::Allowed);
        assert_eq!(subject.acquire(AcquireOptions::cost(1)).retry_after(), Some(quota.period()));
        assert_eq!(subject.acquire(AcquireOptions::cost(MAX_LIMIT + 1)).verdict(), Verdict::ExceedsLimit);
    }
}

#[test]
fn bucket_does_not_overflow_when_the_debt_exceeds_128_bits() {
    let bucket = gcra(Spec::Bucket { quota: Quota::new(7, Duration::from_secs(60)), burst: 7 });
    let rate_of_2_to_the_53rd_a_microsecond = 54 << 55 | 1 << 54 | 1 << 53;
    let state = [u64::MAX, 0, rate_of_2_to_the_53rd_a_microsecond, 0];
    apply_actions(&bucket, state, &[Action::Peek { now: Timestamp::EPOCH, options: AcquireOptions::default() }]);
}
