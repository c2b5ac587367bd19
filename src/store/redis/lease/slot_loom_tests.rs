//! loom models of a slot: decisions, reports, releases, renewals and expiry, in all orders with a few preemptions.
//!
//! The slot is that of production. A model has a clock of its own, which threads advance. In each order:
//!
//! - No more is spent than was granted, in each generation.
//! - What a report counts as spent was spent before the report was sent, or is not spent at all.
//! - Every unit that is spent is charged. A unit is charged without being spent only if a report came between the
//!   subtraction and the check of its decision.
//!
//! Each kind of mistake makes a model fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};

use super::slot::LeaseSlot;

const KEY: u64 = 7;
const OTHER_KEY: u64 = 8;
const DEADLINE: u64 = 10;

/// What a caller of the slot does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// Reads the clock before it takes the cost.
    ClockBeforeTaking,
    /// Does not check the deadline.
    NoDeadline,
    /// Does not check the generation.
    NoGeneration,
    /// Gives a cost back that a report has counted as spent.
    AlwaysGivesBack,
    /// Never gives a cost back.
    NeverGivesBack,
    /// Reads the remainder before it begins the generation of the report.
    TwoSteps,
    /// Reports to the server that everything is released, and keeps the remainder.
    KeepsAtRelease,
    /// Takes from the slot, whatever its key is.
    AnyKey,
}

/// A decision that has taken a cost of 1.
enum Decision {
    /// Spent at this time.
    Spent(u64),
    /// Not spent: the deadline has passed, or a report came between.
    Failed,
}

struct Model {
    slot: LeaseSlot,
    time: AtomicU64,
    mistake: Mistake,
}

/// What the server charges for a report, and what the process keeps.
struct Reported {
    charged: u64,
    kept: u64,
}

impl Model {
    fn new(units: u64, mistake: Mistake) -> Arc<Self> {
        let slot = LeaseSlot::default();
        slot.assign(KEY);
        slot.grant(units, DEADLINE);
        Arc::new(Self { slot, time: AtomicU64::new(0), mistake })
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::Acquire)
    }

    /// Decides with a cost of 1, as `LeaseBook` does. `None` if nothing was taken.
    fn decide(&self) -> Option<Decision> {
        let early = if self.mistake == Mistake::ClockBeforeTaking { self.now() } else { 0 };
        let key = if self.mistake == Mistake::AnyKey { self.slot.fingerprint() } else { KEY };
        let taken = self.slot.take(key, 1)?;
        let at = self.now();
        let may_spend = match self.mistake {
            Mistake::ClockBeforeTaking => self.slot.may_spend(taken, early),
            Mistake::NoDeadline => self.slot.may_spend(taken, 0),
            Mistake::NoGeneration => !self.slot.has_passed(at),
            _ => self.slot.may_spend(taken, at),
        };
        if may_spend {
            return Some(Decision::Spent(at));
        }
        match self.mistake {
            Mistake::AlwaysGivesBack => self.slot.grant(1, 0),
            Mistake::NeverGivesBack => {}
            _ => self.slot.give_back(taken),
        }
        Some(Decision::Failed)
    }

    /// Starts threads that decide.
    fn deciding(self: &Arc<Self>, threads: usize) -> Vec<JoinHandle<Option<Decision>>> {
        let start = |_| {
            let model = Arc::clone(self);
            thread::spawn(move || model.decide())
        };
        (0..threads).map(start).collect()
    }

    /// Reports at the time 1 what was spent of `granted` units, and keeps at most `keep`.
    fn report(&self, granted: u64, keep: u64) -> Reported {
        let early = if self.mistake == Mistake::TwoSteps { Some(self.slot.remaining()) } else { None };
        let (remaining, kept) = match self.mistake {
            Mistake::KeepsAtRelease => (self.slot.begin_generation(u64::MAX).0, keep),
            _ => self.slot.begin_generation(keep),
        };
        self.time.store(1, Ordering::Release);
        Reported { charged: granted - early.unwrap_or(remaining), kept }
    }
}

/// Checks `f` in all orders with up to `preemptions` preemptions.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(Count::new(0));
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        f();
    });
    let orders = orders.load(Relaxed);
    println!("{orders} orders");
    assert!(orders > 2, "a model with a single order checks nothing");
}

/// The decisions of all threads.
struct Tally {
    early: u64,
    late: u64,
    failed: u64,
}

/// Waits for threads that decide. Counts the decisions before the time `end` and from then on.
fn tally(deciding: Vec<JoinHandle<Option<Decision>>>, end: u64) -> Tally {
    let mut tally = Tally { early: 0, late: 0, failed: 0 };
    for thread in deciding {
        match thread.join().unwrap() {
            Some(Decision::Spent(at)) if at < end => tally.early += 1,
            Some(Decision::Spent(_)) => tally.late += 1,
            Some(Decision::Failed) => tally.failed += 1,
            None => {}
        }
    }
    tally
}

/// `threads` threads decide, while the process reports, and keeps at most `keep` of two units.
fn report_beside_decisions(threads: usize, keep: u64, mistake: Mistake) {
    let preemptions = if threads == 1 { 6 } else { 3 };
    model(preemptions, move || {
        let model = Model::new(2, mistake);
        let deciding = model.deciding(threads);
        let Reported { charged, kept } = model.report(2, keep);
        let Tally { early, late, failed } = tally(deciding, 1);
        assert!(late <= kept, "{late} units were spent after the report, which has kept {kept}");
        let (spent, charged) = (early + late, charged + kept.saturating_sub(model.slot.remaining()));
        assert!(spent <= charged, "{spent} units were spent, and {charged} are charged");
        assert!(charged <= spent + failed, "{charged} units are charged, {spent} were spent, {failed} failed");
    });
}

#[test]
fn report_counts_every_unit_once() {
    report_beside_decisions(1, u64::MAX, Mistake::None);
    report_beside_decisions(2, u64::MAX, Mistake::None);
}

#[test]
fn nothing_is_spent_after_a_release() {
    report_beside_decisions(1, 0, Mistake::None);
    report_beside_decisions(2, 0, Mistake::None);
}

#[test]
fn part_of_the_remainder_is_kept() {
    report_beside_decisions(2, 1, Mistake::None);
}

#[test]
#[should_panic(expected = "were spent after the report")]
fn mistake_ignoring_the_generation_is_found() {
    report_beside_decisions(1, 0, Mistake::NoGeneration);
}

#[test]
#[should_panic(expected = "are charged")]
fn mistake_two_steps_is_found() {
    report_beside_decisions(1, u64::MAX, Mistake::TwoSteps);
}

#[test]
#[should_panic(expected = "units were spent")]
fn mistake_keeping_at_release_is_found() {
    report_beside_decisions(1, 0, Mistake::KeepsAtRelease);
}

/// The lease expires while threads decide, and the server charges it whole.
fn expiry_beside_decisions(mistake: Mistake) {
    model(4, move || {
        let model = Model::new(1, mistake);
        let deciding = model.deciding(2);
        model.time.store(DEADLINE, Ordering::Release);
        let Tally { early, late, .. } = tally(deciding, DEADLINE);
        assert_eq!(late, 0, "spent after the deadline");
        assert!(early <= 1, "{early} units of one were spent");
        assert_eq!(early + model.slot.remaining(), 1, "a unit was lost");
    });
}

#[test]
fn nothing_is_spent_after_the_deadline() {
    expiry_beside_decisions(Mistake::None);
}

#[test]
#[should_panic(expected = "spent after the deadline")]
fn mistake_reading_the_clock_before_taking_is_found() {
    expiry_beside_decisions(Mistake::ClockBeforeTaking);
}

#[test]
#[should_panic(expected = "spent after the deadline")]
fn mistake_ignoring_the_deadline_is_found() {
    expiry_beside_decisions(Mistake::NoDeadline);
}

#[test]
#[should_panic(expected = "a unit was lost")]
fn mistake_never_giving_back_is_found() {
    expiry_beside_decisions(Mistake::NeverGivesBack);
}

/// A report is answered with two more units while threads decide, and the old deadline passes.
#[test]
fn renewal_adds_units_once() {
    model(3, || {
        let model = Model::new(1, Mistake::None);
        let deciding = model.deciding(2);
        let Reported { charged, kept } = model.report(1, u64::MAX);
        model.slot.grant(2, 2 * DEADLINE);
        model.time.store(DEADLINE, Ordering::Release);
        let Tally { early, late, failed } = tally(deciding, 1);
        assert!(late <= kept + 2, "more was spent than granted");
        let (spent, charged) = (early + late, charged + kept + 2 - model.slot.remaining());
        assert!(spent <= charged && charged <= spent + failed, "{spent} spent, {charged} charged, {failed} failed");
    });
}

/// The lease ends, and another key gets the slot and a lease, while a thread decides on the first key.
fn takeover_beside_a_decision(mistake: Mistake) {
    model(6, move || {
        let model = Model::new(1, mistake);
        let deciding = model.deciding(1);
        let Reported { charged, .. } = model.report(1, 0);
        model.slot.assign(OTHER_KEY);
        model.slot.grant(2, DEADLINE);
        let Tally { early, late, failed } = tally(deciding, 1);
        assert_eq!(model.slot.remaining(), 2, "the units of the other key");
        assert_eq!(late, 0, "spent after the release");
        assert!(early <= charged && charged <= early + failed, "{early} spent, {charged} charged, {failed} failed");
    });
}

#[test]
fn another_key_keeps_its_units() {
    takeover_beside_a_decision(Mistake::None);
}

#[test]
#[should_panic(expected = "the units of the other key")]
fn mistake_giving_back_always_is_found() {
    takeover_beside_a_decision(Mistake::AlwaysGivesBack);
}

#[test]
#[should_panic(expected = "the units of the other key")]
fn mistake_taking_from_any_key_is_found() {
    takeover_beside_a_decision(Mistake::AnyKey);
}
