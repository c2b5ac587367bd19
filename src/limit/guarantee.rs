//! Guaranteed shares: what they demand of the limits of a limiter. The rule is in [`Plan::of`](crate::decision::Plan::of).

use super::checks::LimitFacts;
use super::{Limit, LimitCost};
use crate::algorithm::{ShareCapacity, ShareFamily};
use crate::decision::ShareRole;
use crate::error::Error;

impl<A, P> Limit<A, P> {
    /// Guarantees each sub-key a share of the limits beside this one. What other sub-keys leave can be borrowed.
    ///
    /// `sub_keys` is the number of sub-keys that have a share: of tenants, for example. The limits *beside* the share are
    /// all other limits of the limiter that count the same cost (no unit, the same [unit](Self::cost_of) or the same
    /// [fixed cost](Self::fixed_cost)).
    ///
    /// - A request that the share allows now is *within its share*. The limits beside it allow such a request, and the
    ///   request is charged to them and to the share.
    /// - Any other request *borrows*: the share does not deny or delay it. The limits beside the share allow the request
    ///   only if, besides its cost and all held costs, the bursts of all shares are free: `sub_keys` times the burst. The
    ///   request is charged to these limits alone. Units that [`keep_free_by`](Self::keep_free_by) keeps free there count
    ///   for requests that borrow: the larger number counts.
    ///
    /// While at most `sub_keys` sub-keys are in use, the limits beside the share never deny a request within its share,
    /// however many requests borrow. The `retry_after` of a request that borrows is exact: the time until the share allows
    /// the request, or until the request may borrow. A cost above the burst of a share can only borrow.
    ///
    /// Among requests that borrow, no tenant is protected: a tenant that sends more requests gets more of the surplus.
    /// [`LimitStatus::is_borrowing`](crate::LimitStatus::is_borrowing) shows which requests borrow. In the
    /// [layer's queue](crate::RateLimitLayer::max_wait), a request waits behind requests of its own share only.
    ///
    /// # Other sub-keys
    ///
    /// A request to which no limit beside the share applies ([`only_if`](Self::only_if)) is bounded by the share alone: it
    /// cannot borrow. A request to which the share does not apply borrows. So guarantee shares to a fixed set of names with
    /// [`keyed_by_some`](Limit::keyed_by_some), which returns `None` for any other name. If more than `sub_keys` sub-keys
    /// are in use, the limits beside the share are still never exceeded, but they can deny requests within their share.
    ///
    /// A mark ([`warn_at`](Self::warn_at)) of a limit beside a share is a part of the whole limit, also for requests that
    /// borrow.
    ///
    /// # What breaks a guarantee
    ///
    /// The limits beside the share can deny requests within their share, until the usage that was added has drained, after
    ///
    /// - a [surcharge](crate::limiter::Held): a tenant that holds 1 and settles 400 makes others wait. Settle at most what
    ///   you have held;
    /// - a block of a limit beside the share, by [`block`](crate::Limiter::block) or an
    ///   [escalation](crate::limiter::Escalating): it denies all requests;
    /// - `reset` or `set_usage` of a share, restored or evicted usage, and limits that were replaced.
    ///
    /// A settlement reaches the limits of a decision one after the other. Until it has reached all, a request within its
    /// share may be denied. In memory the table of shares never evicts a sub-key in use: without a slot, requests borrow.
    /// In Redis, use the policy `noeviction`, as for every limiter. Blocking a key of the share denies its requests.
    ///
    /// # Errors
    ///
    /// The limiter cannot be built if
    ///
    /// - `sub_keys` is 0, or the limiter has two shares;
    /// - a limit of the limiter counts by the whole key: call `keyed_by` on each limit;
    /// - no other limit counts the same cost;
    /// - a limit beside the share is not of its family: both are buckets ([`Gcra`](crate::Gcra),
    ///   [`TokenBucket`](crate::TokenBucket), [`LeakyBucket`](crate::LeakyBucket)), or strict
    ///   [`SlidingWindow`](crate::SlidingWindow)s of one period and number of blocks, or
    ///   [`SlidingLog`](crate::SlidingLog)s of one period, or [`InFlight`](crate::InFlight) with one maximum duration. No
    ///   other algorithm, and no [`per_key`](crate::per_key), can guarantee shares;
    /// - the rates or the bursts of all shares add up to more than the rate or the burst of a limit beside the share;
    /// - the share is a [shadow](Self::shadow), or keeps units free itself;
    /// - the limiter has [leases](crate::store), or in memory capacity for fewer than `sub_keys` keys.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Limit, Memory, Quota};
    ///
    /// struct Call {
    ///     tenant: u32,
    /// }
    ///
    /// // Each of 8 tenants has 100 per second and a burst of 20. The bursts of all are 160.
    /// let share = Limit::new("share", Gcra::new(Quota::per_second(100)).burst(20))
    ///     .keyed_by(|call: &Call| call.tenant)
    ///     .guarantee(8);
    /// let all = Limit::new("all", Gcra::new(Quota::per_second(800)).burst(400)).keyed_by(|_: &Call| ());
    /// let limiter = Memory::new((share, all));
    ///
    /// // Tenant 1 gets its own burst of 20, and borrows what is above the 160 units that are kept free.
    /// let admitted = (0..1_000).filter(|_| limiter.check(&Call { tenant: 1 }, 1).is_allowed()).count();
    /// assert!((240..300).contains(&admitted));
    /// // Every other tenant still has its burst.
    /// assert!((2..=8).all(|tenant| limiter.check(&Call { tenant }, 20).is_allowed()));
    /// ```
    pub fn guarantee(mut self, sub_keys: u64) -> Self {
        self.share = SharePart { role: ShareRole::Share, units: sub_keys };
        self
    }

    /// Places the limit among the guaranteed shares of its limiter.
    pub(crate) fn beside(mut self, shares: Option<Shares>) -> Self {
        self.share.place(shares, self.cost);
        self
    }

    pub(crate) fn share(&self) -> ShareRole {
        self.share.role
    }

    /// Returns the number of sub-keys that have a share, if the limit guarantees shares.
    pub(crate) fn share_count(&self) -> Option<u64> {
        (self.share.role == ShareRole::Share).then_some(self.share.units)
    }
}

/// The part of a limit in the guaranteed shares of its limiter.
#[derive(Clone, Copy)]
pub(crate) struct SharePart {
    pub(crate) role: ShareRole,
    /// Of a share the number of sub-keys that have one; of a limit beside shares the units that are kept free.
    units: u64,
}

impl SharePart {
    pub(super) const NONE: Self = Self { role: ShareRole::None, units: 0 };

    /// Places a limit of this cost among the shares of its limiter, if there are any.
    pub(crate) fn place(&mut self, shares: Option<Shares>, cost: LimitCost) {
        if let Some(shares) = shares.filter(|shares| shares.is_beside(self.role, cost)) {
            *self = Self { role: ShareRole::Common, units: shares.kept };
        }
    }

    /// Returns the units that are kept free from a request that borrows, where the limit itself keeps `own` free.
    #[inline]
    pub(crate) fn kept_free(self, own: Option<u64>) -> Option<u64> {
        own.max((self.role == ShareRole::Common).then_some(self.units))
    }
}

/// The guaranteed shares of a limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// The sum of the bursts of all shares.
    kept: u64,
    cost: LimitCost,
}

impl Shares {
    fn is_beside(self, role: ShareRole, cost: LimitCost) -> bool {
        role != ShareRole::Share && cost == self.cost
    }
}

/// Checks the guaranteed shares of a limiter, if there are any.
///
/// # Errors
///
/// Returns an error if the common limits cannot serve all shares: see
/// [`Limit::guarantee`](super::Limit::guarantee).
pub(super) fn check_shares(limits: &[LimitFacts]) -> Result<Option<Shares>, Error> {
    let mut found = limits.iter().filter(|limit| limit.share.role == ShareRole::Share);
    let Some(share) = found.next() else { return Ok(None) };
    let refuse = |problem: &str| Err(Error::config(format!("guaranteed share {:?}: {problem}", share.name.as_str())));
    if let Some(second) = found.next() {
        return refuse(&format!(
            "the limit {:?} is a second guaranteed share; make one of the two a limiter of its own, and combine the \
             limiters with `limiter::Chained`",
            second.name.as_str()
        ));
    }
    let sub_keys = share.share.units;
    if sub_keys == 0 {
        return refuse("there are 0 sub-keys; pass the number of sub-keys that have a share");
    }
    if share.is_shadow {
        return refuse("a shadow guarantees nothing; remove `shadow`, or make the common limit the shadow");
    }
    if share.keeps_free {
        return refuse("it keeps units free itself; call `keep_free_by` on the common limit");
    }
    let Some(capacity) = share.capacity else { return refuse(NO_CAPACITY) };
    let Some(kept) = sub_keys.checked_mul(capacity.max) else {
        return refuse("the sum of all bursts is above 2^64; lower the number of sub-keys or the burst");
    };
    let shares = Shares { kept, cost: share.cost };
    let mut commons = limits.iter().filter(|limit| shares.is_beside(limit.share.role, limit.cost)).peekable();
    if commons.peek().is_none() {
        return refuse(
            "no other limit of the limiter counts the same cost; add the limit from which requests borrow, with the \
             same `cost_of` or `fixed_cost`",
        );
    }
    for common in commons {
        check_common(share.name.as_str(), sub_keys, capacity, common)?;
    }
    Ok(Some(shares))
}

const NO_CAPACITY: &str = "its algorithm cannot guarantee shares; use a bucket, a strict sliding window, a sliding log or a \
                           limit on requests in flight, the same for all keys";

/// Checks that a common limit can serve all shares at once.
fn check_common(share: &str, sub_keys: u64, own: ShareCapacity, common: &LimitFacts) -> Result<(), Error> {
    // A shadow that need not fit can count another cost.
    let or =
        if common.is_shadow { "; or give this shadow a `fixed_cost`, so that it is not beside the share" } else { "" };
    let refuse = |problem: &str| {
        let name = common.name.as_str();
        Err(Error::config(format!("limit {name:?} beside the guaranteed share {share:?}: {problem}{or}")))
    };
    let Some(capacity) = common.capacity else { return refuse(NO_CAPACITY) };
    if capacity.family != own.family {
        return refuse(match own.family {
            ShareFamily::Bucket => "the share is a bucket; use a bucket for this limit, too",
            ShareFamily::Window { .. } => {
                "the share is a strict sliding window; use one of the same period and number of blocks"
            }
            ShareFamily::Log { .. } => "the share is a sliding log; use one of the same period",
            ShareFamily::Flights { .. } => {
                "the share limits requests in flight; use such a limit with the same `max_duration`"
            }
        });
    }
    let fits = |own: u64, own_factor: u64, whole: u64, whole_factor: u64| {
        let sum = u128::from(sub_keys).checked_mul(u128::from(own));
        let sum = sum.and_then(|sum| sum.checked_mul(u128::from(own_factor)));
        // The right side is below 2^128.
        sum.is_some_and(|sum| sum <= u128::from(whole) * u128::from(whole_factor))
    };
    if !fits(own.limit, capacity.period, capacity.limit, own.period) {
        return refuse("the rates of all shares add up to more than its rate; lower the shares, or raise its quota");
    }
    if !fits(own.max, 1, capacity.max, 1) {
        return refuse("the bursts of all shares add up to more than its burst; lower the shares, or raise its burst");
    }
    Ok(())
}
