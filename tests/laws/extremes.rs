//! Nothing panics: not with garbage in a state, not at the ends of time, not with the largest costs and delays, not
//! with the slowest and the fastest quotas.

use std::hint::black_box;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, LeakyBucket, LeakyQueue, LimitStatus, Quota, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket, Verdict,
};

use crate::cases;
use crate::model::{LONGEST, Spec};
use crate::schedule::{Op, bucket, quota, tiers, window};
use crate::span::{micros, ticks};
use crate::subject::{Subject, fixed_window, gcra};

const LARGEST: u64 = 1 << 53;

/// Something to do to a state, with any arguments.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Look { now: Timestamp, ask: AcquireOptions },
    Commit { now: Timestamp, delay: Duration, cost: u64 },
    LookWithHeld { now: Timestamp, ask: AcquireOptions, held: u64 },
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn a_bucket_survives_any_state(
        spec in bucket(),
        whole in word(),
        part in word(),
        rate in prop_oneof![word(), packed_rate()],
        written_at in word(),
        deeds in deeds(),
    ) {
        let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
        let state = [whole, part, rate, written_at];
        survives(&gcra(spec), state, &deeds);
        survives(&TokenBucket::new(quota).burst(burst), state, &deeds);
        survives(&LeakyBucket::new(quota).burst(burst), state, &deeds);
        if let Ok(queue) = LeakyQueue::try_new(quota).and_then(|queue| queue.try_max_waiting(burst - 1)) {
            survives(&queue, state, &deeds);
        }
    }

    #[test]
    fn a_fixed_window_survives_any_state(quota in quota(), state in words(4), deeds in deeds()) {
        let state = state.try_into().expect("four words");
        survives(&FixedWindow::new(quota), state, &deeds);
        survives(&FixedWindow::new(quota).aligned_to_clock(), state, &deeds);
    }

    #[test]
    fn a_sliding_log_survives_any_state(
        quota in quota(),
        fresh_at in word(),
        period in word(),
        hits in vec((word(), word()), 0..6),
        deeds in deeds(),
    ) {
        if let Ok(algorithm) = SlidingLog::try_new(quota) {
            survives(&algorithm, HitLog { fresh_at, period, hits: hits.into() }, &deeds);
        }
    }

    #[test]
    fn a_sliding_window_survives_any_state(
        quota in quota(),
        blocks in 1u64..=60,
        state in words(Counters::MAX_WORDS),
        deeds in deeds(),
    ) {
        let one_block = SlidingWindow::new(quota).blocks(1);
        let forms = [Ok(one_block), one_block.try_blocks(blocks), one_block.try_weighted()];
        for window in forms.into_iter().flatten() {
            let mut words = Counters::zero(window.counter_words());
            let len = words.len();
            words.copy_from_slice(&state[..len]);
            survives(&window, words, &deeds);
        }
    }

    /// As good as new from the moment on that the first word names, whoever wrote the state.
    #[test]
    fn from_its_first_word_on_a_state_is_as_good_as_new(
        bucket in bucket(),
        window in window(),
        state in words(4),
        later in word(),
        cost in word(),
    ) {
        let state: [u64; 4] = state.try_into().expect("four words");
        let now = Timestamp::from_micros(state[0].saturating_add(later));
        let bucket = gcra(bucket);
        let window = fixed_window(window);
        prop_assert_eq!(bucket.peek(&state, now, AcquireOptions::cost(cost)), bucket.peek(&[0; 4], now, AcquireOptions::cost(cost)));
        prop_assert_eq!(bucket.reading(&state, now).figures(), bucket.reading(&[0; 4], now).figures());
        prop_assert_eq!(window.peek(&state, now, AcquireOptions::cost(cost)), window.peek(&[0; 4], now, AcquireOptions::cost(cost)));
        prop_assert_eq!(window.reading(&state, now).figures(), window.reading(&[0; 4], now).figures());
    }

    /// The same through the front door: any schedule, at any time.
    #[test]
    fn a_limiter_survives_any_schedule(
        buckets in tiers(bucket()),
        windows in tiers(window()),
        start in word(),
        steps in vec((any::<u8>(), word(), word(), word()), 1..40),
    ) {
        let mut subject = Subject::new(&[buckets, windows], start);
        for (kind, a, b, c) in steps {
            let which = usize::from(kind);
            subject.apply(match kind % 10 {
                0..3 => Op::Acquisition(ask((a, Some(Duration::new(b, 0)).filter(|_| kind > 128)))),
                3 => Op::Settle { which, actual: c },
                8 => Op::Hold(AcquireOptions::cost(a)),
                9 => Op::Drop { which },
                4 => Op::Reset,
                5 => Op::Tier(which),
                _ => Op::Clock { now: a },
            });
            let decision = subject.peek(AcquireOptions::cost(c).detail(Detail::All));
            prop_assert_eq!(decision.limits().iter().map(LimitStatus::figures).count(), 2);
        }
    }
}

/// Does the deeds, and looks at the state after each.
fn survives<A: Algorithm>(algorithm: &A, mut state: A::State, deeds: &[Deed]) {
    for &deed in deeds {
        let (now, ask) = match deed {
            Deed::Look { now, ask } => (now, ask),
            Deed::Commit { now, delay, cost } => {
                algorithm.commit(&mut state, now, delay, cost);
                (now, AcquireOptions::cost(cost).max_delay(delay))
            }
            Deed::LookWithHeld { now, ask, held } => {
                let (verdict, reading) = algorithm.peek_with_held(&state, now, ask, held);
                black_box((verdict, reading.figures()));
                (now, ask)
            }
        };
        // The compiler is not to skip what nobody looks at.
        black_box((algorithm.peek(&state, now, ask), algorithm.reading(&state, now).figures()));
    }
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let asks = || (word(), patience()).prop_map(ask);
    let deed = prop_oneof![
        (moment(), asks()).prop_map(|(now, ask)| Deed::Look { now, ask }),
        (moment(), delay(), word()).prop_map(|(now, delay, cost)| Deed::Commit { now, delay, cost }),
        (moment(), asks(), word()).prop_map(|(now, ask, held)| Deed::LookWithHeld { now, ask, held }),
    ];
    vec(deed, 1..8)
}

fn ask((cost, max_delay): (u64, Option<Duration>)) -> AcquireOptions {
    let mut ask = AcquireOptions::cost(cost);
    ask.max_delay = max_delay;
    ask
}

fn patience() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![Just(None), delay().prop_map(Some)]
}

fn delay() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), word().prop_map(ticks)]
}

fn moment() -> impl Strategy<Value = Timestamp> {
    word().prop_map(Timestamp::from_micros)
}

fn words(count: usize) -> impl Strategy<Value = Vec<u64>> {
    vec(word(), count)
}

/// Any number, often a boundary or close to one.
fn word() -> impl Strategy<Value = u64> {
    let near = select(vec![0, 1 << 40, 1_577_836_800_000_000, LONGEST, LARGEST, 1 << 58, 1 << 63, u64::MAX]);
    prop_oneof![
        2 => (near, -3i64..=3).prop_map(|(near, off)| near.saturating_add_signed(off)),
        1 => (0u32..64, any::<u64>()).prop_map(|(shift, word)| word >> shift),
    ]
}

/// As a bucket packs a rate: the number of bits of its tokens, its ticks, its tokens.
fn packed_rate() -> impl Strategy<Value = u64> {
    (1u32..55, any::<u64>()).prop_map(|(bits, word)| u64::from(bits) << 55 | word >> 9)
}

#[test]
fn the_slowest_and_the_fastest_buckets_work() {
    let tick = ticks(1);
    let longest = ticks(LONGEST);
    for (quota, burst) in [
        (Quota::new(1, longest), 1),
        (Quota::new((1 << 32) - 1, tick), LARGEST),
        (Quota::new((1 << 32) - 1, tick), 1),
        (Quota::new(1, tick), LONGEST),
        (Quota::new(LONGEST, longest), LONGEST),
    ] {
        for start in [0, 1, 1 << 52] {
            let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], start);
            assert_eq!(
                subject.acquire(AcquireOptions::cost(burst)).verdict(),
                Verdict::Allowed,
                "{quota}, burst {burst}"
            );
            let refused = subject.acquire(AcquireOptions::cost(burst));
            let wait = refused.retry_after().expect("all is spent");
            assert_eq!(Some(wait), refused.reset(), "{quota}, burst {burst}");
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
fn the_largest_fixed_window_works() {
    let quota = Quota::new(LARGEST, ticks(LONGEST));
    for aligned in [false, true] {
        let mut subject = Subject::new(&[vec![Spec::Window { quota, aligned }]], LONGEST);
        assert_eq!(subject.acquire(AcquireOptions::cost(LARGEST)).verdict(), Verdict::Allowed);
        assert_eq!(subject.acquire(AcquireOptions::cost(1)).retry_after(), Some(quota.period()));
        assert_eq!(subject.acquire(AcquireOptions::cost(LARGEST + 1)).verdict(), Verdict::ExceedsLimit);
    }
}

/// A key that was used in the last moment there is stays in debt for ever, and that is all.
#[test]
fn at_the_end_of_time_nothing_breaks() {
    let quota = Quota::per_second(1);
    for spec in [Spec::Bucket { quota, burst: 3 }, Spec::Window { quota, aligned: false }] {
        let mut subject = Subject::new(&[vec![spec]], u64::MAX - 10);
        assert!(subject.acquire(AcquireOptions::default()).is_allowed(), "{spec:?}");
        for now in [u64::MAX - 1, u64::MAX, 0, u64::MAX] {
            subject.set_clock(now);
            subject.acquire(AcquireOptions::default().max_delay(Duration::MAX));
            subject.acquire(AcquireOptions::cost(u64::MAX).max_delay(Duration::MAX));
        }
    }
}

#[test]
fn a_debt_beyond_128_bits_does_not_overflow() {
    let bucket = gcra(Spec::Bucket { quota: Quota::new(7, Duration::from_secs(60)), burst: 7 });
    let rate_of_2_to_the_53rd_a_microsecond = 54 << 55 | 1 << 54 | 1 << 53;
    let state = [u64::MAX, 0, rate_of_2_to_the_53rd_a_microsecond, 0];
    survives(&bucket, state, &[Deed::Look { now: Timestamp::EPOCH, ask: AcquireOptions::default() }]);
}
