//! The limits of each trace.

use super::*;

pub(super) async fn gcra(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "gcra", [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)]).await;
}

pub(super) async fn token_bucket(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "token", [TokenBucket::new(a).burst(9), TokenBucket::new(b), TokenBucket::new(c)]).await;
}

pub(super) async fn leaky_bucket(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "leaky", [LeakyBucket::new(a).strict(), LeakyBucket::new(b), LeakyBucket::new(c)]).await;
}

pub(super) async fn leaky_queue(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "queue", [LeakyQueue::new(a), LeakyQueue::new(b).max_waiting(2), LeakyQueue::new(c).max_waiting(0)])
        .await;
}

pub(super) async fn fixed_window(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "fixed", [FixedWindow::new(a), FixedWindow::new(b).aligned_to_clock(), FixedWindow::new(c)]).await;
}

pub(super) async fn sliding_window(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "strict", [SlidingWindow::new(a), SlidingWindow::new(b).blocks(7), SlidingWindow::new(c).blocks(3)])
        .await;
}

pub(super) async fn weighted_window(trace: Trace) {
    let [a, b, c] = quotas();
    let weighted = |quota| SlidingWindow::new(quota).blocks(1).weighted();
    alone(trace, "weighted", [weighted(a), weighted(b), SlidingWindow::new(c).blocks(6).weighted()]).await;
}

/// Tiers whose blocks differ in width and number, and of which some are weighted.
pub(super) async fn windows_of_both_forms(trace: Trace) {
    let [a, b, c] = quotas();
    let weighted = SlidingWindow::new(b).blocks(1).weighted();
    alone(trace, "forms", [SlidingWindow::new(a).blocks(60), weighted, SlidingWindow::new(c).weighted()]).await;
}

pub(super) async fn aligned_windows(trace: Trace) {
    let [a, b, c] = quotas();
    let aligned = |quota| FixedWindow::new(quota).aligned_to_clock();
    alone(trace, "aligned", [aligned(a), FixedWindow::new(b), aligned(c)]).await;
}

pub(super) async fn sliding_log(trace: Trace) {
    let [a, b, c] = quotas();
    alone(trace, "log", [SlidingLog::new(a), SlidingLog::new(b), SlidingLog::new(c)]).await;
}

/// Of three tiers, one has no units. A key may have used another tier.
pub(super) async fn tiers_of_zero(trace: Trace) {
    let ([a, _, c], none) = (quotas(), Quota::per_hour(0));
    alone(trace, "none of a bucket", [Gcra::new(a), Gcra::new(none), Gcra::new(c).burst(9)]).await;
    alone(trace, "none of a queue", [LeakyQueue::new(a), LeakyQueue::new(none), LeakyQueue::new(c)]).await;
    alone(trace, "none of a window", [FixedWindow::new(a), FixedWindow::new(none), FixedWindow::new(c)]).await;
    alone(trace, "none of blocks", [SlidingWindow::new(a), SlidingWindow::new(none), SlidingWindow::new(c)]).await;
    alone(trace, "none of a log", [SlidingLog::new(a), SlidingLog::new(none), SlidingLog::new(c)]).await;
}

/// Rates whose products exceed 2^53, where the Lua script computes in digits.
pub(super) async fn fine_rates(trace: Trace) {
    let fine = [
        Quota::new(999_983, Duration::from_micros(999_999_937)),
        Quota::new(999_999_937, Duration::from_micros(999_983)),
        Quota::new(67_108_859, Duration::from_micros(67_108_863)),
    ];
    alone(trace, "fine", fine.map(|quota| Gcra::new(quota).burst(5))).await;
}

/// Near the longest period, 200 years: no start is scheduled beyond it.
pub(super) async fn long_periods(trace: Trace) {
    let years = |years: u64| Duration::from_secs(years * 365 * 24 * 60 * 60);
    let [a, b, c] = [Quota::new(3, years(120)), Quota::new(4, years(150)), Quota::new(4, years(90))];
    let queue = |quota, waiting| LeakyQueue::new(quota).max_waiting(waiting);
    alone(trace, "years", [queue(a, 3), queue(b, 4), queue(c, 7)]).await;
}

pub(super) async fn several_together(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 21..=23 {
        let limits = (
            Limit::new("user", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("log", SlidingLog::new(b)).keyed_by(|caller: &Caller| caller.team),
            Limit::new("all", SlidingWindow::new(c)).keyed_by(|_: &Caller| ()),
            Limit::new("shadow", FixedWindow::new(a)).keyed_by(|caller: &Caller| caller.team).shadow(),
        );
        compare(&deployments, "mixed", limits, seed, trace).await;
    }
}

pub(super) async fn in_flight_alone(trace: Trace) {
    alone(trace, "flights", [InFlight::new(5), InFlight::new(3), InFlight::new(9)]).await;
}

/// With rates, a fixed cost, and as a shadow beside a limit that schedules.
pub(super) async fn in_flight_with_rates(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 51..=54 {
        let limits = (
            Limit::new("streams", InFlight::new(4)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("user", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("log", SlidingLog::new(c)).keyed_by(|caller: &Caller| caller.team),
            Limit::new("all", InFlight::new(6)).keyed_by(|_: &Caller| ()).fixed_cost(1),
        );
        compare(&deployments, "flights and rates", limits, seed, trace).await;
        let limits = (
            Limit::new("queue", LeakyQueue::new(a)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("window", SlidingWindow::new(b)).keyed_by(|caller: &Caller| caller.team).fixed_cost(1),
            Limit::new("shadow", InFlight::new(2)).keyed_by(|caller: &Caller| caller.user).shadow(),
        );
        compare(&deployments, "shadow flights", limits, seed + 10, trace).await;
    }
}

pub(super) async fn several_with_scheduling(trace: Trace) {
    let ([a, b, _], deployments) = (quotas(), Deployments::shared());
    for seed in 31..=33 {
        let limits = (
            Limit::new("queue", LeakyQueue::new(a)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("bucket", Gcra::new(b)).keyed_by(|caller: &Caller| caller.team),
            Limit::new("shadow", LeakyQueue::new(b)).keyed_by(|caller: &Caller| caller.user).shadow(),
        );
        compare(&deployments, "turns", limits, seed, trace).await;
    }
}

/// Limits with a fixed cost beside limits with the cost of the request.
pub(super) async fn fixed_costs(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    let one = Limit::new("one", Gcra::new(a)).fixed_cost(2).keyed_by(|caller: &Caller| caller.user);
    compare(&deployments, "fixed bucket", one, 51, trace).await;
    let one = Limit::new("one", FixedWindow::new(b)).fixed_cost(1).keyed_by(|caller: &Caller| caller.user);
    compare(&deployments, "fixed window", one, 52, trace).await;
    let limits = (
        Limit::new("requests", Gcra::new(c)).fixed_cost(1).keyed_by(|caller: &Caller| caller.user),
        Limit::new("tokens", TokenBucket::new(a).burst(9)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("log", SlidingLog::new(b)).fixed_cost(2).keyed_by(|caller: &Caller| caller.team),
        Limit::new("shadow", FixedWindow::new(a)).fixed_cost(3).keyed_by(|caller: &Caller| caller.team).shadow(),
    );
    compare(&deployments, "requests and tokens", limits, 53, trace).await;
    let limits = (
        Limit::new("requests", LeakyQueue::new(b)).fixed_cost(1).keyed_by(|caller: &Caller| caller.user),
        Limit::new("tokens", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("none", SlidingWindow::new(c)).fixed_cost(0).keyed_by(|caller: &Caller| caller.team),
    );
    compare(&deployments, "scheduled requests and tokens", limits, 54, trace).await;
}

/// Limits with a unit of their own, beside limits with the number or a fixed cost.
pub(super) async fn units(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    let one = Limit::new("one", Gcra::new(a)).cost_of("input").keyed_by(|caller: &Caller| caller.user);
    compare(&deployments, "unit", one, 61, trace).await;
    let limits = (
        Limit::new("requests", Gcra::new(c)).fixed_cost(1).keyed_by(|caller: &Caller| caller.user),
        Limit::new("input", TokenBucket::new(a).burst(9)).cost_of("input").keyed_by(|caller: &Caller| caller.user),
        Limit::new("output", SlidingLog::new(b)).cost_of("output").keyed_by(|caller: &Caller| caller.team),
        Limit::new("dollars", FixedWindow::new(a)).cost_of("dollars").keyed_by(|caller: &Caller| caller.team).shadow(),
    );
    compare(&deployments, "units of a language model", limits, 62, trace).await;
    let limits = (
        Limit::new("requests", LeakyQueue::new(b)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("input", Gcra::new(a)).cost_of("input").keyed_by(|caller: &Caller| caller.user),
        Limit::new("team", SlidingWindow::new(c)).cost_of("input").keyed_by(|caller: &Caller| caller.team),
    );
    compare(&deployments, "scheduled units", limits, 63, trace).await;
    let limits = (
        Limit::new("streams", InFlight::new(6)).cost_of("streams").keyed_by(|caller: &Caller| caller.user),
        Limit::new("output", Gcra::new(a).burst(9)).cost_of("output").keyed_by(|caller: &Caller| caller.user),
    );
    compare(&deployments, "units in flight", limits, 64, trace).await;
}

/// Each of the callers meets another subset of the limits, and one of them none. A limit on requests in flight, a queue
/// and a log are among them.
pub(super) async fn conditions(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 61..=63 {
        let limits = (
            Limit::new("queue", LeakyQueue::new(a))
                .keyed_by(|caller: &Caller| caller.user)
                .only_if(|caller: &Caller| caller.user > 0),
            Limit::new("log", SlidingLog::new(c)).keyed_by_some(|caller: &Caller| caller.team.checked_sub(1)),
            Limit::new("user", Gcra::new(b))
                .keyed_by(|caller: &Caller| caller.user)
                .only_if(|caller: &Caller| !(caller.user + caller.team).is_multiple_of(3)),
            Limit::new("shadow", FixedWindow::new(a))
                .keyed_by(|_: &Caller| ())
                .only_if(|caller: &Caller| caller.user == 1)
                .shadow(),
        );
        compare(&deployments, "conditions", limits, seed, trace).await;
        let limits = (
            Limit::new("streams", InFlight::new(3))
                .keyed_by(|caller: &Caller| caller.team)
                .only_if(|caller: &Caller| caller.user == 2),
            Limit::new("all", LeakyQueue::new(c)).keyed_by(|_: &Caller| ()).only_if(|caller: &Caller| caller.team == 0),
            Limit::new("requests", SlidingWindow::new(b)).keyed_by(|caller: &Caller| caller.user).fixed_cost(1),
        );
        compare(&deployments, "conditional flights", limits, seed, trace).await;
        let one = Limit::new("one", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user);
        compare(&deployments, "one condition", one.only_if(|caller: &Caller| caller.team == 1), seed, trace).await;
    }
}

/// Limits that keep units free from some callers, beside a condition, a log and a limit on requests in flight.
pub(super) async fn kept_free(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 71..=73 {
        let limits = (
            Limit::new("bucket", Gcra::new(a)).keyed_by(|_: &Caller| ()).keep_free_by(|caller: &Caller| caller.user),
            Limit::new("log", SlidingLog::new(b))
                .keyed_by(|caller: &Caller| caller.team)
                .keep_free_by(|caller: &Caller| 2 * caller.user)
                .only_if(|caller: &Caller| caller.user != 1),
            Limit::new("user", LeakyQueue::new(c)).keyed_by(|caller: &Caller| caller.user),
        );
        compare(&deployments, "classes", limits, seed, trace).await;
        let limits = (
            Limit::new("streams", InFlight::new(5))
                .keyed_by(|_: &Caller| ())
                .keep_free_by(|caller: &Caller| caller.user),
            Limit::new("window", SlidingWindow::new(b))
                .keyed_by(|caller: &Caller| caller.team)
                .keep_free_by(|caller: &Caller| caller.user + 1)
                .fixed_cost(2)
                .shadow(),
        );
        compare(&deployments, "classes of flights", limits, seed, trace).await;
        let tiers = [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)];
        let one = Limit::new("one", per_key(move |caller: &Caller| tiers[caller.tier]));
        let one = one.keyed_by(|caller: &Caller| caller.team).keep_free_by(|caller: &Caller| caller.user);
        compare(&deployments, "one with classes", one, seed, trace).await;
    }
}

/// Guaranteed shares of buckets, windows and requests in flight, beside a condition, a class, and a shadow.
pub(super) async fn shares(trace: Trace) {
    let deployments = Deployments::shared();
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    for seed in 81..=83 {
        let limits = (
            Limit::new("share", Gcra::new(quota(2, 1_000)).burst(2))
                .keyed_by(|caller: &Caller| caller.user)
                .guarantee(3),
            Limit::new("all", Gcra::new(quota(9, 1_000)).burst(11))
                .keyed_by(|_: &Caller| ())
                .keep_free_by(|caller: &Caller| 4 * caller.user),
            Limit::new("team", LeakyQueue::new(quota(4, 1_000))).keyed_by(|caller: &Caller| caller.team).fixed_cost(1),
        );
        compare(&deployments, "shares", limits, seed, trace).await;
        let limits = (
            Limit::new("all", SlidingWindow::new(quota(12, 2_000))).keyed_by(|_: &Caller| ()),
            Limit::new("share", SlidingWindow::new(quota(2, 2_000)))
                .keyed_by_some(|caller: &Caller| (caller.user < 2).then_some(caller.user))
                .guarantee(2),
            Limit::new("trial", SlidingWindow::new(quota(5, 2_000))).keyed_by(|_: &Caller| ()).shadow(),
        );
        compare(&deployments, "shares of windows", limits, seed, trace).await;
        let limits = (
            Limit::new("share", SlidingLog::new(quota(2, 2_000))).keyed_by(|caller: &Caller| caller.user).guarantee(3),
            Limit::new("all", SlidingLog::new(quota(9, 2_000)))
                .keyed_by(|_: &Caller| ())
                .only_if(|caller: &Caller| caller.team == 0),
        );
        compare(&deployments, "shares of logs", limits, seed, trace).await;
        let limits = (
            Limit::new("share", InFlight::new(1)).keyed_by(|caller: &Caller| caller.user).guarantee(3),
            Limit::new("all", InFlight::new(6)).keyed_by(|_: &Caller| ()),
        );
        compare(&deployments, "shares of flights", limits, seed, trace).await;
    }
}

/// Limits with marks, beside limits without one, a shadow, a log and a limit on requests in flight.
pub(super) async fn near_limit(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 81..=83 {
        let limits = (
            Limit::new("bucket", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user).warn_at(0.5),
            Limit::new("log", SlidingLog::new(b)).keyed_by(|caller: &Caller| caller.team).warn_at(0.8),
            Limit::new("window", FixedWindow::new(c)).keyed_by(|_: &Caller| ()),
            Limit::new("trial", SlidingWindow::new(c)).keyed_by(|caller: &Caller| caller.team).warn_at(1.0).shadow(),
        );
        compare(&deployments, "marks", limits, seed, trace).await;
        let limits = (
            Limit::new("streams", InFlight::new(5)).keyed_by(|_: &Caller| ()).warn_at(0.6),
            Limit::new("kept", SlidingLog::new(b))
                .keyed_by(|caller: &Caller| caller.team)
                .keep_free_by(|caller: &Caller| caller.user)
                .warn_at(0.7),
        );
        compare(&deployments, "marks of flights", limits, seed, trace).await;
        let queue = Limit::new("queue", LeakyQueue::new(a)).keyed_by(|caller: &Caller| caller.user).warn_at(0.4);
        compare(&deployments, "mark of a queue", queue, seed, trace).await;
        let log = Limit::new("log", SlidingLog::new(b)).keyed_by(|caller: &Caller| caller.user).warn_at(0.4);
        compare(&deployments, "mark of a log", log, seed, trace).await;
    }
}

/// Limiters that charge all or none of their limits: each by itself, with units, a shadow, fixed costs and classes.
pub(super) async fn chains(trace: Trace) {
    let ([a, b, c], deployments) = (quotas(), Deployments::shared());
    for seed in 91..=93 {
        let user = Limit::new("user", Gcra::new(a)).keyed_by(|caller: &Caller| caller.user);
        let log = Limit::new("log", SlidingLog::new(b)).cost_of("input").keyed_by(|caller: &Caller| caller.team);
        let shadow = Limit::new("shadow", FixedWindow::new(c)).keyed_by(|_: &Caller| ()).shadow();
        compare_chains(&deployments, "chain", (user.clone(), (log.clone(), shadow)), seed, trace).await;
        let requests =
            Limit::new("requests", FixedWindow::new(c)).keyed_by(|caller: &Caller| caller.team).fixed_cost(1);
        let classes = Limit::new("all", SlidingWindow::new(b))
            .keyed_by(|_: &Caller| ())
            .keep_free_by(|caller: &Caller| caller.user)
            .only_if(|caller: &Caller| caller.tier < 2);
        compare_chains(&deployments, "chain of conditions", ((requests, log), (classes, user)), seed, trace).await;
    }
}

/// Old and new limits of one name in three processes.
pub(super) async fn old_and_new_processes(trace: Trace) {
    let [a, b, c] = quotas();
    compare_processes(trace, "old buckets", [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)]).await;
    let aligned = FixedWindow::new(b).aligned_to_clock();
    compare_processes(trace, "old windows", [FixedWindow::new(a), aligned, FixedWindow::new(c)]).await;
    let windows = [SlidingWindow::new(a), SlidingWindow::new(b).blocks(7), SlidingWindow::new(c).weighted()];
    compare_processes(trace, "old blocks", windows).await;
    compare_processes(trace, "old logs", [SlidingLog::new(a), SlidingLog::new(b), SlidingLog::new(c)]).await;
    compare_processes(trace, "old flights", [InFlight::new(5), InFlight::new(3), InFlight::new(9)]).await;
}

/// Windows of several calendars beside a rate, and calendars that a key changes: across ends of months, leap days and
/// changes of the clocks. A decision whose client has another window makes a second call, after later requests.
pub(super) async fn calendars(trace: Trace) {
    let deployments = Deployments::shared();
    let berlin = Calendar::monthly_on(31).zone("Europe/Berlin").expect("a zone");
    let tiers =
        [Calendar::monthly(), Calendar::weekly_from(Weekday::Sunday), Calendar::daily().utc_offset_minutes(-570)];
    let tier = per_key(move |caller: &Caller| FixedWindow::calendar(9, tiers[caller.tier]));
    for seed in 1..=3 {
        let limits = (
            Limit::new("month", FixedWindow::calendar(25, berlin)).keyed_by(|caller: &Caller| caller.user),
            Limit::new("tier", tier.clone()).keyed_by(|caller: &Caller| caller.user),
            Limit::new("smooth", Gcra::new(Quota::per_hour(1))).keyed_by(|_: &Caller| ()),
            Limit::new("year", FixedWindow::calendar(200, Calendar::yearly())).keyed_by(|_: &Caller| ()).shadow(),
        );
        compare_limits(&deployments, "calendars", limits, seed, trace, 1).await;
    }
}
