//! The runtime of the background tasks is parked, while another one goes on: leases go on too.

use super::callers::Answer;
use super::quota::{Form, Quota};
use super::scenario::{Call, Fault, FaultKind, Kind, LeaseEnd, Scenario};
use super::{Run, laws, run_scenario};

/// When the runtime is parked, and when the last call comes.
const PARKED_AT: u64 = 1_000;
const END: u64 = 3_000;

/// Decides every millisecond, with leases of 100 ms.
fn decide(seed: u64, fault: FaultKind) -> Run {
    let call = |at| Call {
        at,
        client: 0,
        key: 0,
        cost: 1,
        kind: Kind::Decide,
        leaves_after: None,
        yields: 0,
        is_after_recovery: false,
    };
    run_scenario(
        Scenario {
            deadline: 50,
            hold_expiry: 400,
            quotas: vec![Quota { units: 2_000, period: 1_000_000, form: Form::TokenBucket { burst: 2_000 } }],
            lease: Some((100, 0.25)),
            lease_end: LeaseEnd::Idle,
            clients: 1,
            link: (seed % 3, seed % 2),
            service_micros: 0,
            has_unique_costs: false,
            calls: (0..END).map(call).collect(),
            faults: vec![Fault { at: PARKED_AT + seed, lasts: 0, kind: fault }],
            faults_end: 0,
            replaces: Vec::new(),
            ..Scenario::new(seed)
        },
        false,
    )
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
