//! A limiter of one bucket by user that accounts for holds wrongly, to show that checks of holds can fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::{AcquireOptions, Clock, Decision, Gcra, LimitStatus, Limiter, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;

#[allow(dead_code, reason = "each suite makes the mistakes that its law finds")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mistake {
    None,
    /// A hold charges immediately, and its settlement charges nothing.
    ChargesAtHold,
    /// A hold charges its cost, and its settlement refunds the rest.
    RefundsTheRest,
    /// `peek` ignores held cost.
    PeeksAtTheStateAlone,
    /// `acquire` ignores held cost.
    DecidesByTheStateAlone,
    /// Settling charges twice.
    SettlesTwice,
    /// Settling charges nothing.
    DropsTheCharge,
    /// Settling charges the held cost instead of the actual cost.
    SettlesWhole,
    /// The end of one hold ends every hold.
    ReleasesTooMuch,
    /// The end of a hold does not end it.
    NeverReleases,
    /// Dropping the guard charges nothing.
    ForgetsWhoIsDropped,
    /// A new key removes the holds of all other keys.
    EvictsHeldKeys,
}

#[derive(Default)]
struct Account {
    state: <Gcra as Algorithm>::State,
    held: u64,
}

pub(crate) struct BrokenHolds<C> {
    clock: C,
    bucket: Gcra,
    mistake: Mistake,
    accounts: Arc<Mutex<HashMap<u64, Account>>>,
}

impl<C: Clock + Clone + 'static> BrokenHolds<C> {
    pub(crate) fn new(clock: C, bucket: Gcra, mistake: Mistake) -> Self {
        Self { clock, bucket, mistake, accounts: Arc::default() }
    }

    fn charges_at_hold(&self) -> bool {
        matches!(self.mistake, Mistake::ChargesAtHold | Mistake::RefundsTheRest)
    }

    fn decide(&self, options: AcquireOptions, account: &Account, held: u64) -> LimitStatus {
        let now = self.clock.now();
        let options = if options.hold { options.max_delay(Duration::ZERO) } else { options };
        let mut state = account.state;
        self.bucket.charge(&mut state, now, Duration::ZERO, held);
        LimitStatus::new("one", self.bucket.peek(&state, now, options), self.bucket.snapshot(&state, now))
    }

    fn decision(&self, options: AcquireOptions, held: u64, verdict: Verdict, status: &LimitStatus) -> Decision {
        let status = LimitStatus::new("one", verdict, status.snapshot());
        let is_estimate = held > 0 && !verdict.is_allowed();
        Decision::from_limit(self.clock.now(), status).with_scheduling(!options.hold).with_estimate(is_estimate)
    }

    fn guard(&self, user: u64, cost: u64) -> Held {
        let (clock, bucket, mistake) = (self.clock.clone(), self.bucket, self.mistake);
        let accounts = Arc::clone(&self.accounts);
        Held::new(cost, move |actual| {
            let mut accounts = accounts.lock().expect("no thread panics");
            let Account { state, held } = accounts.entry(user).or_default();
            if mistake == Mistake::RefundsTheRest {
                // The first word of the state is the time from which the key is idle.
                let of_token = bucket.quota().period() / u32::try_from(bucket.quota().limit()).expect("small");
                let unused = of_token.as_micros() * u128::from(cost.saturating_sub(actual));
                state[0] = state[0].saturating_sub(u64::try_from(unused).expect("short")).max(state[3]);
                return LimiterFuture::ready(Ok(()));
            }
            *held = match mistake {
                Mistake::ReleasesTooMuch => 0,
                Mistake::NeverReleases => *held,
                _ => held.saturating_sub(cost),
            };
            let charged = match mistake {
                Mistake::ChargesAtHold | Mistake::DropsTheCharge => 0,
                Mistake::SettlesTwice => 2 * actual,
                Mistake::SettlesWhole => cost,
                Mistake::ForgetsWhoIsDropped if actual == cost => 0,
                _ => actual,
            };
            bucket.charge(state, clock.now(), Duration::ZERO, charged);
            LimiterFuture::ready(Ok(()))
        })
    }
}

impl<C: Clock + Clone + 'static> Limiter<[u64; 2]> for BrokenHolds<C> {
    fn acquire(&self, &[user, _]: &[u64; 2], options: AcquireOptions) -> LimiterFuture<Outcome> {
        let mut accounts = self.accounts.lock().expect("no thread panics");
        if self.mistake == Mistake::EvictsHeldKeys {
            accounts.iter_mut().filter(|(other, _)| **other != user).for_each(|(_, account)| account.held = 0);
        }
        let account = accounts.entry(user).or_default();
        let held = account.held;
        let seen = if self.mistake == Mistake::DecidesByTheStateAlone { 0 } else { held };
        let verdict = self.decide(options, account, seen).verdict();
        let delay = if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO };
        let is_held = verdict.is_allowed() && options.hold;
        if is_held && !self.charges_at_hold() {
            account.held += options.cost;
        } else if verdict.is_allowed() {
            self.bucket.charge(&mut account.state, self.clock.now(), delay, options.cost);
        }
        let after = self.decide(options, account, account.held);
        let guard = is_held.then(|| self.guard(user, options.cost));
        LimiterFuture::ready(Ok(Outcome::new(self.decision(options, held, verdict, &after), guard)))
    }

    fn peek(&self, &[user, _]: &[u64; 2], options: AcquireOptions) -> LimiterFuture<Decision> {
        let mut accounts = self.accounts.lock().expect("no thread panics");
        let account = accounts.entry(user).or_default();
        let seen = if self.mistake == Mistake::PeeksAtTheStateAlone { 0 } else { account.held };
        let status = self.decide(options, account, seen);
        LimiterFuture::ready(Ok(self.decision(options, account.held, status.verdict(), &status)))
    }
}
