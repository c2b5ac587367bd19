//! Laws of the bucket that only code of this crate can check: what is decided in line, and the arithmetic of rates.

use std::cmp::Ordering;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// A state at a time.
#[derive(Debug)]
struct Moment {
    bucket: Bucket,
    state: [u64; 4],
    now: u64,
}

impl Moment {
    fn clock_lag(&self) -> u64 {
        self.state[3].saturating_sub(self.now)
    }

    /// Whether the bucket is full at the time of the decision: now, or the time of the last charge if it is later.
    fn is_full(&self) -> bool {
        self.state[0] <= self.now.max(self.state[3])
    }

    fn is_of_this_quota(&self) -> bool {
        self.state[2] == self.bucket.rate.packed
    }
}

proptest! {
    // Miri is about a thousand times slower.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 3 } else { 2_000 },
        ..ProptestConfig::default()
    })]

    /// "The common case: a cost of one, no delay, and a state that is idle or of this quota."
    #[test]
    fn decision_is_in_line_in_the_common_case_only(moment in moment(), options in options(), queued in any::<bool>()) {
        let Moment { bucket, state, now } = &moment;
        let now = Timestamp::from_micros(*now);
        let has_no_delay = match options.start {
            Start::After(_) => false,
            // A queue delays by default, and starts a request without a delay when it is idle.
            Start::Within(_) if queued => true,
            Start::Within(max_delay) => max_delay.unwrap_or_default().is_zero(),
        };
        let is_known = moment.is_full() || (!queued && moment.is_of_this_quota());
        let is_common = options.cost == 1 && has_no_delay && is_known && moment.clock_lag() <= bucket.time_to_full;
        let in_line = bucket.decide_in_line(state, now, options, queued).as_ref().map(result);
        prop_assert_eq!(in_line.is_some(), is_common);
        let complete = result(&bucket.decide(state, now, options, queued));
        prop_assert_eq!(complete, result(&bucket.decide_slow(state, now, options, queued)));
        prop_assert_eq!(in_line.unwrap_or(complete), complete);
    }

    #[test]
    fn snapshot_in_line_equals_the_complete_snapshot(moment in moment()) {
        let Moment { bucket, state, now } = moment;
        let now = Timestamp::from_micros(now);
        prop_assert_eq!(bucket.snapshot(&state, now).compute(), bucket.snapshot_slow(state, now).compute());
    }

    /// A span is `count * ticks / tokens`, or longer than any period.
    #[test]
    fn span_is_exact_unless_it_exceeds_the_longest_period(rate in rate(), count in number(u64::MAX)) {
        let span = rate.span(count);
        prop_assert!(span.fraction < rate.tokens);
        let (own, exact) = (parts_of_span(span, rate), u128::from(count) * u128::from(rate.ticks));
        let longest = parts(1 << 61, rate);
        if exact < longest {
            prop_assert_eq!(own, exact);
        } else {
            prop_assert!(own >= longest);
        }
    }

    #[test]
    fn tokens_used_are_the_usage_times_the_rate_rounded_up(
        rate in rate(), usage in number(u64::MAX), fraction in any::<u64>(),
    ) {
        let fraction = if usage == 0 { 0 } else { fraction % rate.tokens };
        let exact = (parts(usage, rate) - u128::from(fraction)).div_ceil(rate.ticks.into());
        prop_assert_eq!(u128::from(rate.tokens_used(usage, fraction)), exact.min(u64::MAX.into()));
    }

    #[test]
    fn packed_rate_is_unpacked_unchanged(rate in rate()) {
        prop_assert_eq!(Rate::unpack(rate.packed), rate);
    }

    #[test]
    fn faster_rate_has_more_tokens_per_tick(one in rate(), other in rate()) {
        let order = parts(other.ticks, one).cmp(&parts(one.ticks, other));
        prop_assert_eq!(one.is_faster_than(other), order == Ordering::Greater);
        prop_assert!(!one.is_faster_than(one));
    }

    /// Beyond the last time of 64 bits, the sum is that time.
    #[test]
    fn arrival_time_plus_span_is_exact(
        rate in rate(), ticks in number(1 << 55), count in number(1 << 20), part in any::<u64>(),
    ) {
        let tat = Tat { ticks: ticks + 1, fraction: part % rate.tokens };
        let span = rate.span(count);
        let sum = tat.plus(span, rate.tokens);
        let exact = parts_of_time(tat, rate) + parts_of_span(span, rate);
        prop_assert!(sum.fraction < rate.tokens);
        if exact <= parts(u64::MAX, rate) {
            prop_assert_eq!(parts_of_time(sum, rate), exact);
        } else {
            prop_assert_eq!(sum.ticks, u64::MAX);
        }
    }

    #[test]
    fn earlier_arrival_time_is_the_minimum(
        rate in rate(), ticks in number(1 << 55), off in -2i64..=2, part in any::<u64>(),
    ) {
        let tat = Tat { ticks: ticks + 3, fraction: part % rate.tokens };
        let latest = tat.ticks.saturating_add_signed(off);
        prop_assert_eq!(parts_of_time(tat.min(latest), rate), parts_of_time(tat, rate).min(parts(latest, rate)));
    }

    /// A change of quota keeps the usage, counted in tokens and rounded up by less than the smallest unit.
    #[test]
    fn conversion_keeps_the_tokens_of_the_usage(
        bucket in bucket(), old in rate(), at in number(Timestamp::MAX.as_micros()),
        usage in number(MAX_PERIOD_MICROS), part in any::<u64>(),
    ) {
        let usage = Tat { ticks: at + usage.max(1), fraction: part % old.tokens };
        let converted = bucket.convert(usage, old, at);
        // A usage of `n` parts is `n / rate.ticks` tokens.
        let parts_used = |tat: Tat, rate: Rate| parts_of_time(tat, rate) - parts(at, rate);
        let rounded = mul_div_ceil(parts_used(usage, old), bucket.rate.ticks, old.ticks);
        let most = parts(MAX_PERIOD_MICROS, bucket.rate);
        prop_assert!(converted.fraction < bucket.rate.tokens);
        prop_assert_eq!(parts_used(converted, bucket.rate), rounded.min(most));
    }
}

/// Returns the parts of a step.
fn result(step: &Step<[u64; 4]>) -> (Option<[u64; 4]>, u64) {
    match *step {
        Step::Allow { next, delay } => (Some(next), delay),
        Step::Deny { wait } => (None, wait),
        Step::Exceeds => (None, 0),
    }
}

/// A number of ticks in parts of `1 / rate.tokens` of a tick.
fn parts(ticks: u64, rate: Rate) -> u128 {
    u128::from(ticks) * u128::from(rate.tokens)
}

fn parts_of_time(tat: Tat, rate: Rate) -> u128 {
    parts(tat.ticks, rate) - u128::from(tat.fraction)
}

fn parts_of_span(span: Span, rate: Rate) -> u128 {
    parts(span.ticks, rate) + u128::from(span.fraction)
}

/// Returns `number * times / divisor` rounded up, or the last number.
fn mul_div_ceil(number: u128, times: u64, divisor: u64) -> u128 {
    let (times, divisor) = (u128::from(times), u128::from(divisor));
    (number / divisor).saturating_mul(times).saturating_add((number % divisor * times).div_ceil(divisor))
}

/// Generates numbers up to `max`, uniform over the orders of magnitude, and the boundaries.
fn number(max: u64) -> impl Strategy<Value = u64> {
    let any = (0u32..64, any::<u64>()).prop_map(move |(shift, word)| (word >> shift).min(max));
    prop_oneof![8 => any, 1 => select(vec![0, 1, max - 1, max])]
}

/// Generates rates in lowest terms up to the boundaries of what is representable.
fn rate() -> impl Strategy<Value = Rate> {
    let any = (number(1 << 33), number(1 << 53))
        .prop_filter_map("not representable", |(limit, period)| Rate::new(limit.max(1), period.max(1)));
    let extreme = select(vec![(1, 1), (1, 1 << 53), (1, MAX_PERIOD_MICROS), ((1 << 32) - 1, 1), (3, 1), (1, 3)]);
    prop_oneof![4 => any, 1 => extreme.prop_map(|(tokens, ticks)| Rate::new(tokens, ticks).expect("representable"))]
}

fn bucket() -> impl Strategy<Value = Bucket> {
    let small = (1u64..6, 1u64..60, 1u64..9).prop_map(|(limit, period, burst)| (limit, period, burst));
    let any = (number(1 << 33), number(MAX_PERIOD_MICROS), number(1 << 53));
    prop_oneof![small, any].prop_filter_map("not valid", |(limit, period, burst)| {
        let quota = Quota::try_new(limit.max(1), Duration::from_micros(period.max(1))).ok()?;
        Bucket::new(quota, burst.max(1)).ok()
    })
}

/// Generates states that charges write, at times close to the boundaries of the decision.
fn moment() -> impl Strategy<Value = Moment> {
    let time = prop_oneof![0..1_000u64, number(Timestamp::MAX.as_micros() - (1 << 52))];
    let off = || prop_oneof![3 => -2i64..=2, 1 => any::<i16>().prop_map(i64::from)];
    let lag = (select(vec![0, 1]), off());
    let usage = (0u64..4, off(), number(MAX_PERIOD_MICROS));
    let other_rate = prop::option::weighted(0.2, rate());
    (bucket(), time, lag, usage, any::<u64>(), other_rate).prop_map(|(bucket, time, lag, usage, part, other_rate)| {
        let rate = other_rate.unwrap_or(bucket.rate);
        let now = time + bucket.time_to_full;
        let last = (now + lag.0 * bucket.time_to_full).saturating_add_signed(lag.1);
        let at = now.max(last);
        let ticks = match usage.0 {
            0 => at.saturating_add_signed(usage.1),
            1 => (at + bucket.tolerance.ticks).saturating_add_signed(usage.1),
            2 => at + (usage.2 % (2 * bucket.time_to_full)).min(MAX_PERIOD_MICROS),
            _ => at + usage.2,
        };
        Moment { bucket, state: [ticks, part % rate.tokens, rate.packed, last], now }
    })
}

fn options() -> impl Strategy<Value = ChargeOptions> {
    let delay = || number(1 << 40).prop_map(Duration::from_micros);
    let start = prop_oneof![
        4 => Just(Start::Within(None)),
        2 => Just(Start::Within(Some(Duration::ZERO))),
        1 => delay().prop_map(|delay| Start::Within(Some(delay))),
        1 => delay().prop_map(Start::After),
    ];
    (prop_oneof![1 => Just(0), 8 => Just(1), 2 => 2u64..9], start)
        .prop_map(|(cost, start)| ChargeOptions { start, ..ChargeOptions::forced(cost, Duration::ZERO) })
}

/// Returns the bucket of `tokens` in each `ticks` microseconds.
fn bucket_of(tokens: u64, ticks: u64, burst: u64) -> Bucket {
    Bucket::unwrap_or_panic(Bucket::new(Quota::new(tokens, Duration::from_micros(ticks)), burst))
}

/// A debt at a fast rate is up to 2^85 tokens, which take up to 2^137 ticks at a slow rate: the longest period caps it.
#[test]
fn conversion_caps_a_debt_that_exceeds_128_bits() {
    let now = Timestamp::from_micros(1_000);
    // The products are multiples of 2^128, or almost: they would wrap around to a small number.
    for (tokens, ticks, delay, slow) in [
        ((1 << 32) - 1, 1, MAX_PERIOD_MICROS, MAX_PERIOD_MICROS),
        (1 << 31, 1, 1 << 45, 1 << 52),
        (1 << 31, 3, 1 << 52, 1 << 52),
    ] {
        let (fast, slow) = (bucket_of(tokens, ticks, 1), bucket_of(1, slow, 1));
        let forced = ChargeOptions::forced(1, Duration::from_micros(delay));
        let Step::Allow { next, .. } = fast.decide(&[0; 4], now, forced, false) else { panic!("forced") };
        let [ticks, fraction, _, at] = next;
        let converted = slow.convert(Tat { ticks, fraction }, fast.rate, at);
        assert_eq!(converted, Tat { ticks: 1_000 + MAX_PERIOD_MICROS, fraction: 0 });
    }
}

/// A word that no quota packs: without tokens or without ticks.
#[test]
fn state_with_a_rate_of_zero_is_full_and_does_not_panic() {
    let bucket = bucket_of(3, 7, 3);
    let now = Timestamp::from_micros(100);
    for rate in [Rate::pack(0, 7), Rate::pack(7, 0), Rate::pack(0, 0), 1 << 55] {
        let state = [200, 0, rate, 90];
        assert_eq!(bucket.snapshot(&state, now).compute(), bucket.snapshot(&[0; 4], now).compute(), "{rate}");
        let charge = ChargeOptions::forced(1, Duration::ZERO);
        assert_eq!(
            result(&bucket.decide(&state, now, charge, false)),
            result(&bucket.decide(&[0; 4], now, charge, false)),
            "{rate}"
        );
    }
}
