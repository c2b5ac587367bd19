//! The runtime of the background tasks is parked, while another one goes on: leases go on too.

use super::callers::Answer;
use super::quota::{Form, Quota};
use super::scenario::{Call, Fault, FaultKind, Scenario};
use super::world::Link;
use super::{Run, laws, run_scenario};

/// When the runtime is parked, and when the last call comes.
const PARKED_AT: u64 = 1_000;
const END: u64 = 3_000;

/// Decides every millisecond, with leases of 100 ms.
fn decide(seed: u64, fault: FaultKind) -> Run {
    let quota = Quota { units: 2_000, period: 1_000_000, form: Form::TokenBucket { burst: 2_000 } };
    let scenario = Scenario {
        seed,
        lease: Some((100, 0.25)),
        link: Link { delay: seed % 3 * 1000, jitter: seed % 2 * 1000, ..Link::default() },
        faults: vec![Fault { at: PARKED_AT + seed, lasts: 0, kind: fault }],
        ..Scenario::of_calls(quota, (0..END).map(|at| Call::decision(at, 1)).collect())
    };
    run_scenario(scenario, false)
}

/// The share of the calls between two times that leases decide, in percent.
fn leased(run: &Run, from: u64, until: u64) -> u64 {
    let of_time = run.observed.iter().filter(|call| (from..until).contains(&call.call.at));
    of_time.filter(|call| matches!(call.answer, Answer::Leased)).count() as u64 * 100 / (until - from)
}

/// A task of another runtime takes over after a quarter of the duration. If no runtime is driven, leases end.
#[test]
fn parked_runtime_ends_no_leases() {
    for seed in 0..6 {
        let run = decide(seed, FaultKind::Parked);
        assert_eq!(laws::check(&run), Vec::<String>::new(), "seed {seed}");
        let shares = [leased(&run, 0, PARKED_AT), leased(&run, PARKED_AT + 200, END)];
        assert!(shares[0] > 80 && shares[1] > 95, "seed {seed}: {shares:?} percent");
        let run = decide(seed, FaultKind::Undriven);
        assert_eq!(laws::check(&run), Vec::<String>::new(), "seed {seed}");
        assert_eq!(leased(&run, PARKED_AT + 200, END), 0, "seed {seed}");
    }
}
