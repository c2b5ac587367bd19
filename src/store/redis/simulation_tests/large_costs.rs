//! Requests of large costs beside leases: they are admitted as often as without leases.
//!
//! Each seed chooses the quota, the duration and the share of leases, the processes, the rate of requests of cost 1 that
//! leases can serve, and one class of larger costs. The same arrivals are decided with leases and without.

use super::callers::Answer;
use super::model::Verdict;
use super::quota::{Form, Quota};
use super::scenario::{Call, Scenario};
use super::world::Link;
use super::{Run, laws};
use crate::random::Random;

/// The classes of costs, in percent of the burst.
const CLASSES: [u64; 5] = [10, 30, 50, 80, 100];
const SEEDS: u64 = 20;

/// The load of one seed. Times are in milliseconds.
#[derive(Clone, Debug)]
struct Load {
    seed: u64,
    duration: u64,
    share: f64,
    processes: usize,
    quota: Quota,
    /// The requests of cost 1 in each duration, of all processes.
    small: u64,
    /// The class, and the larger cost.
    class: usize,
    cost: u64,
    /// The time between two requests of the larger cost, and when the last one comes.
    interval: u64,
    large_until: u64,
    span: u64,
}

impl Load {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (duration, share) = (random.between(50, 200), [0.1, 0.25, 0.5, 1.0][random.index(4)]);
        let processes = 1 + random.index(3);
        let small = random.between(20, 32) * processes as u64;
        let burst = (small * random.between(25, 300) / 100).max(10);
        let class = random.index(CLASSES.len());
        let cost = (burst * CLASSES[class] / 100).max(2);
        // The requests of cost 1 use from 40 to 80 % of the quota.
        let units = small * 100 / random.between(40, 80);
        let quota = Quota { units, period: duration * 1000, form: Form::TokenBucket { burst } };
        // The rest suffices for some requests of the larger cost.
        let durations = (12 * cost / (units - small)).clamp(20, 80);
        let (interval, span) = (random.between(duration / 5, 2 * duration), durations * duration);
        Self { seed, duration, share, processes, quota, small, class, cost, interval, large_until: span, span }
    }

    fn calls(&self) -> Vec<Call> {
        let mut random = Random::new(self.seed ^ 0xca11);
        let small = self.small * self.span / self.duration;
        let mut arrivals: Vec<(u64, u64)> = (0..small).map(|_| (random.below(self.span), 1)).collect();
        arrivals.extend((1..self.large_until / self.interval).map(|index| (index * self.interval, self.cost)));
        arrivals.sort_unstable();
        let call = |(at, cost)| Call { client: random.index(self.processes), ..Call::decision(at, cost) };
        arrivals.into_iter().map(call).collect()
    }

    /// Decides all arrivals, with leases or without. The run obeys the laws of all simulations.
    fn run(&self, has_leases: bool) -> Run {
        let scenario = Scenario {
            seed: self.seed,
            lease: has_leases.then_some((self.duration, self.share)),
            clients: self.processes,
            link: Link { delay: 1000, ..Link::default() },
            ..Scenario::of_calls(self.quota, self.calls())
        };
        let run = super::run_scenario(scenario, false);
        assert_eq!(laws::check(&run), Vec::<String>::new(), "{self:?}");
        run
    }
}

/// The admissions of one run: of cost 1, of the larger cost, and by leases.
#[derive(Clone, Copy, Debug, Default)]
struct Admitted {
    small: u64,
    large: u64,
    leased: u64,
}

impl Admitted {
    /// Counts the admissions from a time on.
    fn since(run: &Run, from: u64) -> Self {
        let mut admitted = Self::default();
        for call in run.observed.iter().filter(|call| call.asked_at >= from * 1000) {
            let is_leased = matches!(call.answer, Answer::Leased);
            if is_leased || matches!(call.answer, Answer::Decided(Verdict::Allowed, _)) {
                *(if call.call.cost == 1 { &mut admitted.small } else { &mut admitted.large }) += 1;
                admitted.leased += u64::from(is_leased);
            }
        }
        admitted
    }
}

/// In each seed, of each class, leases admit at least 90 % of what the same arrivals get without leases.
#[test]
fn large_costs_beside_leases() {
    let loads: Vec<_> = (0..SEEDS).map(Load::new).collect();
    let admitted =
        super::on_all_cores(&loads, |load| [true, false].map(|has_leases| Admitted::since(&load.run(has_leases), 0)));
    let mut failures = Vec::new();
    for (class, percent) in CLASSES.iter().enumerate() {
        let (mut sums, mut worst) = ([0; 2], 100);
        for (load, [with, without]) in loads.iter().zip(&admitted).filter(|(load, _)| load.class == class) {
            for (with, without) in [(with.large, without.large), (with.small, without.small)] {
                // The end of a run may cut off one admission.
                if with * 10 + 10 < without * 9 {
                    failures.push(format!("{with} of {without}: {load:?}"));
                }
            }
            sums = [sums[0] + with.large, sums[1] + without.large];
            worst = worst.min(with.large * 100 / without.large.max(1));
        }
        println!(
            "{percent} % of the burst: {} admitted, {} without leases, the worst seed {worst} %",
            sums[0], sums[1]
        );
        assert!(sums[1] > 25, "few admissions prove nothing");
    }
    assert!(failures.is_empty(), "{} of {SEEDS} seeds:\n{}", failures.len(), failures.join("\n"));
}

/// Requests of large costs end all leases on their key. After the last one, leases begin again.
#[test]
fn leases_begin_again_after_large_costs() {
    let has_units = |load: &Load| load.quota.capacity() * 2 > load.small * 3 && load.share > 0.2;
    let loads = (0..).map(Load::new).filter(|load| CLASSES[load.class] >= 80 && has_units(load)).take(3);
    let loads = loads.map(|load| Load { large_until: load.span, span: load.span + 100 * load.duration, ..load });
    let loads: Vec<_> = loads.collect();
    let admitted = super::on_all_cores(&loads, |load| {
        let run = load.run(true);
        let last = load.span - 20 * load.duration;
        [Admitted::since(&run, 0), Admitted::since(&run, last)]
    });
    for (load, [_, last]) in loads.iter().zip(&admitted) {
        println!("{} of {} by leases", last.leased, last.small);
        assert!(last.leased * 3 > last.small, "{last:?}: {load:?}");
    }
}
