//! Laws of the two readers of a state: the ring, which reads the usual states in place, and the view, which converts any.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::algorithm::{AlgorithmExt as _, State};

/// A charge: whether the first window makes it, the number of half blocks since the charge before, and the cost.
type Charge = (bool, i64, i64, u64);

/// A state at a time. Another window with other blocks may have made some of the charges.
#[derive(Debug)]
struct Moment {
    window: SlidingWindow,
    state: Counters,
    now: u64,
}

impl Moment {
    fn ring(&self) -> Option<Ring<'_>> {
        Ring::new(self.window.layout, &self.state, self.now)
    }

    fn view(&self) -> View<'_> {
        View::new(self.window.layout, &self.state, self.now)
    }

    /// "A state that a window with the same blocks wrote, at a time at which its newest block counts."
    fn is_usual(&self) -> bool {
        let &[idle_at, _, written_at, word, total, ..] = &*self.state else {
            panic!("a state has at least seven words")
        };
        let is_open = idle_at > self.now.max(written_at);
        let clock_lag = written_at.saturating_sub(self.now);
        let max_reset = (self.window.layout.blocks + 1) * self.window.layout.width;
        let has_other_ring = self.state.get(HEAD + index(self.window.layout.kept()) + 3).is_some_and(|word| *word > 0);
        !has_other_ring && word == self.window.layout.word() && is_open && clock_lag <= max_reset && total < u64::MAX
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn usual_state_is_read_as_a_ring(moment in moment()) {
        prop_assert_eq!(moment.ring().is_some(), moment.is_usual());
    }

    #[test]
    fn ring_and_view_agree(moment in moment()) {
        let (Some(ring), view) = (moment.ring(), moment.view()) else { return Ok(()) };
        prop_assert_eq!((ring.at, parts(&ring.totals())), (view.at, parts(&view.totals())));
        prop_assert_eq!(blocks_of(ring.live()), blocks_of(view.live()));
    }

    /// The totals and the blocks after a charge are those of the charged state.
    #[test]
    fn ring_after_a_charge_agrees_with_the_charged_state(moment in moment(), cost in cost()) {
        let Some(ring) = moment.ring() else { return Ok(()) };
        let charged = ring.charged(ring.totals(), cost);
        let used = ring.totals().used + u128::from(cost);
        prop_assert_eq!(charged.as_ref().map(|totals| totals.used), u64::try_from(used).ok().map(u128::from));
        let Some(charged) = charged else { return Ok(()) };
        let mut state = moment.state.clone();
        state.apply(ring.charge(cost));
        let after = Moment { state, ..moment };
        prop_assert_eq!(parts(&charged), parts(&after.view().totals()));
        // The charge is a block of its own, beside what its block held before.
        let sums = |blocks: Vec<(u64, u64, u64)>| {
            let mut sums = std::collections::BTreeMap::new();
            for (block, leaves_at, count) in blocks {
                *sums.entry((block, leaves_at)).or_insert(0) += count;
            }
            sums
        };
        prop_assert_eq!(sums(blocks_of(ring.live_after(cost))), sums(blocks_of(after.view().live())));
    }

    /// The complete decision, which reads any state, and the decision on a ring have the same result and next state.
    #[test]
    fn decision_agrees_with_the_complete_decision(moment in moment(), cost in cost(), forced in any::<bool>()) {
        let Moment { window, state, now } = &moment;
        let options = ChargeOptions { start: start(forced), cost };
        let step = window.decide(state, Timestamp::from_micros(*now), options);
        if !forced && cost > window.quota.limit() {
            prop_assert!(matches!(step, Step::Exceeds));
            return Ok(());
        }
        let complete = window.decide_slow(state, *now, options);
        prop_assert_eq!(step.verdict(), complete.verdict());
        let (Step::Allow { next, .. }, Step::Allow { next: complete, .. }) = (step, complete) else { return Ok(()) };
        let [charged, expected] = [next, complete].map(|next| {
            let mut state = state.clone();
            state.apply(next);
            state
        });
        prop_assert_eq!(charged.to_vec(), expected.to_vec());
    }

    /// An allowed request on a usual state has its snapshot, so that the store does not read the changed state.
    #[test]
    fn next_state_of_a_ring_has_its_snapshot(moment in moment(), cost in cost(), forced in any::<bool>()) {
        let Moment { window, state, now } = &moment;
        let at = Timestamp::from_micros(*now);
        let options = ChargeOptions { start: start(forced), cost };
        let Step::Allow { next, .. } = window.decide(state, at, options) else { return Ok(()) };
        let fits = moment.ring().is_some_and(|ring| ring.totals().used + u128::from(cost) <= u64::MAX.into());
        let snapshot = Counters::next_snapshot(&next);
        prop_assert_eq!(snapshot.is_some(), fits);
        let mut charged = state.clone();
        charged.apply(next);
        if let Some(snapshot) = snapshot {
            prop_assert_eq!(snapshot.compute(), window.snapshot(&charged, at).compute());
        }
        prop_assert_eq!(window.snapshot(&charged, at).compute(), window.snapshot_slow(&charged, *now).compute());
    }

    #[test]
    fn snapshot_agrees_with_the_complete_snapshot(moment in moment()) {
        let Moment { window, state, now } = moment;
        let snapshot = window.snapshot(&state, Timestamp::from_micros(now));
        prop_assert_eq!(snapshot.compute(), window.snapshot_slow(&state, now).compute());
    }

    /// "At and after the time in the first word, every result equals that of the zero state", whatever the others hold.
    #[test]
    fn state_is_idle_from_its_first_word_on(
        moment in moment(),
        earlier in prop_oneof![Just(0u64), 0u64..1_000],
        cost in cost(),
        forced in any::<bool>(),
    ) {
        let Moment { window, mut state, now } = moment;
        let zero = Counters::zero(state.len());
        let at = Timestamp::from_micros(now);
        state[0] = now.max(state[2]).saturating_sub(earlier);
        let options = ChargeOptions { start: start(forced), cost };
        let verdict = |state| window.decide(state, at, options).verdict();
        prop_assert_eq!(verdict(&state), verdict(&zero));
        prop_assert_eq!(window.snapshot(&state, at).compute(), window.snapshot(&zero, at).compute());
    }

    #[test]
    fn block_at_is_the_block_of_the_time_whatever_the_newest_block_is(
        blocks in 1u64..=60,
        width in 1u64..1_000,
        at in prop_oneof![0u64..100_000, any::<u64>()],
        newest in prop_oneof![0u64..1_000, any::<u64>()],
        near in -2i64..=2,
    ) {
        let layout = Layout { blocks, width };
        for newest in [newest, (at / width).saturating_add_signed(near)] {
            prop_assert_eq!(layout.block_at(at, newest), at / width);
        }
        prop_assert_eq!(Layout::from_word(layout.word()), layout);
    }
}

fn parts(totals: &Totals) -> [u128; 6] {
    let &Totals { used, oldest, first_leaves_at, last_leaves_at, at, current } = totals;
    [used, oldest, first_leaves_at.into(), last_leaves_at.into(), at.into(), current.into()]
}

fn blocks_of(blocks: impl Iterator<Item = Live>) -> Vec<(u64, u64, u64)> {
    blocks.map(|Live { block, leaves_at, count }| (block, leaves_at, count)).collect()
}

fn start(forced: bool) -> Start {
    if forced { Start::After(Duration::ZERO) } else { Start::Within(None) }
}

fn window() -> impl Strategy<Value = SlidingWindow> {
    let limit = prop_oneof![4 => 1u64..20, 1 => Just(1 << 40)];
    (limit, select(vec![1, 2, 3, 5, 10, 60]), 1u64..50, any::<bool>()).prop_map(|(limit, blocks, width, weighted)| {
        let window = SlidingWindow::new(Quota::new(limit, Duration::from_micros(blocks * width))).blocks(blocks);
        if weighted { window.weighted() } else { window }
    })
}

/// Mostly small. A surcharge may be any number. No store charges zero.
fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1u64..7, 1 => Just(u64::MAX / 2), 1 => (0u64..8).prop_map(|less| u64::MAX - less)]
}

fn charges() -> impl Strategy<Value = Vec<Charge>> {
    let half_blocks = prop_oneof![6 => 0i64..4, 1 => -3i64..0, 1 => 4i64..140];
    vec((prop_oneof![9 => Just(true), 1 => Just(false)], half_blocks, -1i64..=1, cost()), 0..8)
}

/// The time of a decision, from a time of the state on, in half blocks and microseconds.
#[derive(Clone, Copy, Debug)]
enum Offset {
    /// Mostly close to the newest time; up to two periods later, or as long before.
    Newest(i64, i64),
    LastCharge(i64, i64),
    /// From the earliest time at which the state still counts.
    Oldest(i64),
}

fn offset() -> impl Strategy<Value = Offset> {
    let near = || (prop_oneof![4 => -2i64..6, 1 => -124i64..124], -1i64..=1);
    prop_oneof![
        4 => near().prop_map(|(half_blocks, more)| Offset::Newest(half_blocks, more)),
        4 => near().prop_map(|(half_blocks, more)| Offset::LastCharge(half_blocks, more)),
        1 => (-1i64..=1).prop_map(Offset::Oldest),
    ]
}

prop_compose! {
    fn moment()(
        windows in (window(), window()),
        // Before the first block of the clock there is none.
        first in prop_oneof![0u64..100, Just(1_000_000)],
        charges in charges(),
        offset in offset(),
    ) -> Moment {
        let half_block = i64::try_from(windows.0.layout.width.div_ceil(2)).expect("short");
        let mut state = Counters::zero(Counters::MAX_WORDS);
        let mut now = first;
        for (is_own, half_blocks, more, cost) in charges {
            now = now.saturating_add_signed(half_blocks * half_block + more);
            let window = if is_own { windows.0 } else { windows.1 };
            window.charge(&mut state, Timestamp::from_micros(now), Duration::ZERO, cost);
        }
        let now = match offset {
            Offset::Newest(half_blocks, more) => state[2].saturating_add_signed(half_blocks * half_block + more),
            Offset::LastCharge(half_blocks, more) => now.saturating_add_signed(half_blocks * half_block + more),
            Offset::Oldest(more) => {
                let oldest = state[2].saturating_sub(micros_floor(windows.0.max_reset()));
                oldest.saturating_add_signed(more)
            }
        };
        Moment { window: windows.0, state, now }
    }
}
