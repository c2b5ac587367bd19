//! The limits of the traces. Each of the names has traces of its own.

use super::*;

/// One limit whose key chooses among three tiers.
macro_rules! alone {
    ($($(#[$doc:meta])* $name:ident: $traces:ident, |$a:ident, $b:ident, $c:ident| $tiers:expr;)+) => {
        $($(#[$doc])* #[tokio::test]
        async fn $name() {
            let [$a, $b, $c] = quotas();
            alone(&$traces, stringify!($name), $tiers).await;
        })+
    };
}

alone! {
    gcra: ALSO_BACK, |a, b, c| [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)];
    token_bucket: ALSO_BACK, |a, b, c| [TokenBucket::new(a).burst(9), TokenBucket::new(b), TokenBucket::new(c)];
    leaky_bucket: ALSO_BACK, |a, b, c| [LeakyBucket::new(a).strict(), LeakyBucket::new(b), LeakyBucket::new(c)];
    leaky_queue: ALSO_BACK,
        |a, b, c| [LeakyQueue::new(a), LeakyQueue::new(b).max_waiting(2), LeakyQueue::new(c).max_waiting(0)];
    fixed_window: ALSO_BACK,
        |a, b, c| [FixedWindow::new(a), FixedWindow::new(b).aligned_to_clock(), FixedWindow::new(c)];
    aligned_windows: ALSO_BACK,
        |a, b, c| [FixedWindow::new(a).aligned_to_clock(), FixedWindow::new(b), FixedWindow::new(c).aligned_to_clock()];
    sliding_window: ALSO_BACK,
        |a, b, c| [SlidingWindow::new(a), SlidingWindow::new(b).blocks(7), SlidingWindow::new(c).blocks(3)];
    weighted_window: ALSO_BACK,
        |a, b, c| [(a, 1), (b, 1), (c, 6)].map(|(quota, blocks)| SlidingWindow::new(quota).blocks(blocks).weighted());
    /// Tiers whose blocks differ in width and number, and of which some are weighted.
    windows_of_both_forms: FORWARD, |a, b, c| {
        let weighted = SlidingWindow::new(b).blocks(1).weighted();
        [SlidingWindow::new(a).blocks(60), weighted, SlidingWindow::new(c).weighted()]
    };
    sliding_log: ALSO_BACK, |a, b, c| [a, b, c].map(SlidingLog::new);
}

/// Of three tiers, one has no units. A key may have used another tier.
#[tokio::test]
async fn tiers_of_zero() {
    let ([a, _, c], none) = (quotas(), Quota::per_hour(0));
    let seen = [
        alone(&ALSO_BACK, "none of a bucket", [Gcra::new(a), Gcra::new(none), Gcra::new(c).burst(9)]).await,
        alone(&ALSO_BACK, "none of a queue", [a, none, c].map(LeakyQueue::new)).await,
        alone(&ALSO_BACK, "none of a window", [a, none, c].map(FixedWindow::new)).await,
        alone(&ALSO_BACK, "none of blocks", [a, none, c].map(SlidingWindow::new)).await,
        alone(&ALSO_BACK, "none of a log", [a, none, c].map(SlidingLog::new)).await,
        alone(&FORWARD, "none in flight", [InFlight::new(5), InFlight::new(0), InFlight::new(3)]).await,
    ];
    assert!(seen.iter().all(|seen| seen.of_zero > 20), "{seen:?}");
}

/// Rates whose products exceed 2^53, where the Lua script computes in digits.
#[tokio::test]
async fn fine_rates() {
    let fine = [
        Quota::new(999_983, Duration::from_micros(999_999_937)),
        Quota::new(999_999_937, Duration::from_micros(999_983)),
        Quota::new(67_108_859, Duration::from_micros(67_108_863)),
    ];
    alone(&ALSO_BACK, "fine", fine.map(|quota| Gcra::new(quota).burst(5))).await;
}

/// Near the longest period, 200 years: no start is scheduled beyond it.
#[tokio::test]
async fn long_periods() {
    let years = |years: u64| Duration::from_secs(years * 365 * 24 * 60 * 60);
    let [a, b, c] = [Quota::new(3, years(120)), Quota::new(4, years(150)), Quota::new(4, years(90))];
    let queue = |quota, waiting| LeakyQueue::new(quota).max_waiting(waiting);
    let tiers = [queue(a, 3), queue(b, 4), queue(c, 7)];
    let limit = Limit::new("tiers", by_tier(tiers)).keyed_by(USER);
    compare(&[Trace::ClockSteps], "years", limits![limit]).await;
}

#[tokio::test]
async fn several_together() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("user", Gcra::new(a)).keyed_by(USER),
        Limit::new("log", SlidingLog::new(b)).keyed_by(TEAM),
        Limit::new("all", SlidingWindow::new(c)).keyed_by(ALL),
        Limit::new("shadow", FixedWindow::new(a)).keyed_by(TEAM).shadow(),
    ];
    compare(&FORWARD, "mixed", limits).await;
}

/// Only buckets, which have a fast path of their own: with a mark, rates by key, a condition, a unit, a fixed cost and a shadow.
#[tokio::test]
async fn several_buckets() {
    let [a, b, c] = quotas();
    let tiers = by_tier([b, c, a].map(TokenBucket::new));
    let limits = limits![
        Limit::new("user", Gcra::new(a).burst(9)).keyed_by(USER).warn_at(0.8),
        Limit::new("tier", tiers).keyed_by(USER).only_if((|caller| caller.team != 0) as Condition),
        Limit::new("all", LeakyBucket::new(c)).keyed_by(ALL).fixed_cost(1),
        Limit::new("shadow", Gcra::new(b)).keyed_by(TEAM).shadow(),
    ];
    compare(&BACK_WITHOUT_IDS, "buckets", limits).await;
    let plain = limits![
        Limit::new("user", Gcra::new(a).burst(9)).keyed_by(USER),
        Limit::new("team", TokenBucket::new(b).burst(20)).keyed_by(TEAM),
    ];
    compare(&BACK_WITHOUT_IDS, "two buckets", plain).await;
}

#[tokio::test]
async fn in_flight_alone() {
    alone(&FORWARD, "flights", [InFlight::new(5), InFlight::new(3), InFlight::new(9)]).await;
}

/// With rates, a fixed cost, and as a shadow beside a limit that schedules.
#[tokio::test]
async fn in_flight_with_rates() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("streams", InFlight::new(4)).keyed_by(USER),
        Limit::new("user", Gcra::new(a)).keyed_by(USER),
        Limit::new("log", SlidingLog::new(c)).keyed_by(TEAM),
        Limit::new("all", InFlight::new(6)).keyed_by(ALL).fixed_cost(1),
    ];
    compare(&FORWARD, "flights and rates", limits).await;
    let limits = limits![
        Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER),
        Limit::new("window", SlidingWindow::new(b)).keyed_by(TEAM).fixed_cost(1),
        Limit::new("shadow", InFlight::new(2)).keyed_by(USER).shadow(),
    ];
    compare(&FORWARD, "shadow flights", limits).await;
    let limits = limits![
        Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER),
        Limit::new("bucket", Gcra::new(b)).keyed_by(TEAM),
        Limit::new("shadow", InFlight::new(2)).keyed_by(USER).shadow(),
        Limit::new("streams", InFlight::new(6)).keyed_by(ALL).only_if((|caller| caller.user == 1) as Condition),
    ];
    compare(&FORWARD, "scheduled shadow flights", limits).await;
    let limits = limits![
        Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER).only_if((|caller| caller.user > 0) as Condition),
        Limit::new("shadow", InFlight::new(1)).keyed_by(TEAM).shadow(),
    ];
    compare(&FORWARD, "queued shadow flights", limits).await;
}

#[tokio::test]
async fn several_with_scheduling() {
    let [a, b, _] = quotas();
    let limits = limits![
        Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER),
        Limit::new("bucket", Gcra::new(b)).keyed_by(TEAM),
        Limit::new("shadow", LeakyQueue::new(b)).keyed_by(USER).shadow(),
    ];
    // Waits of several queues are rarely a microsecond apart.
    for name in ["turns", "turns again", "turns once more"] {
        compare_limits(&FORWARD, name, &limits, Arrivals::Together).await;
    }
}

/// Limits with a fixed cost, alone (where Redis does not know that a hold is repeated with another cost, which no limit
/// counts), and beside limits with the cost of the request.
#[tokio::test]
async fn fixed_costs() {
    let [a, b, c] = quotas();
    let one = Limit::new("one", Gcra::new(a)).fixed_cost(2).keyed_by(USER);
    compare(&WITHOUT_IDS, "fixed bucket", limits![one]).await;
    let one = Limit::new("one", FixedWindow::new(b)).fixed_cost(1).keyed_by(USER);
    compare(&WITHOUT_IDS, "fixed window", limits![one]).await;
    let limits = limits![
        Limit::new("requests", Gcra::new(c)).fixed_cost(1).keyed_by(USER),
        Limit::new("tokens", TokenBucket::new(a).burst(9)).keyed_by(USER),
        Limit::new("log", SlidingLog::new(b)).fixed_cost(2).keyed_by(TEAM),
        Limit::new("shadow", FixedWindow::new(a)).fixed_cost(3).keyed_by(TEAM).shadow(),
    ];
    compare(&FORWARD, "requests and tokens", limits).await;
    let limits = limits![
        Limit::new("requests", LeakyQueue::new(b)).fixed_cost(1).keyed_by(USER),
        Limit::new("tokens", Gcra::new(a)).keyed_by(USER),
        Limit::new("none", SlidingWindow::new(c)).fixed_cost(0).keyed_by(TEAM),
    ];
    compare(&FORWARD, "scheduled requests and tokens", limits).await;
}

/// Limits with a unit of their own, beside limits with the number or a fixed cost.
#[tokio::test]
async fn units() {
    let [a, b, c] = quotas();
    let one = Limit::new("one", Gcra::new(a)).cost_of("input").keyed_by(USER);
    compare(&FORWARD, "unit", limits![one]).await;
    let limits = limits![
        Limit::new("requests", Gcra::new(c)).fixed_cost(1).keyed_by(USER),
        Limit::new("input", TokenBucket::new(a).burst(9)).cost_of("input").keyed_by(USER),
        Limit::new("output", SlidingLog::new(b)).cost_of("output").keyed_by(TEAM),
        Limit::new("dollars", FixedWindow::new(a)).cost_of("dollars").keyed_by(TEAM).shadow(),
    ];
    compare(&FORWARD, "units of a language model", limits).await;
    let limits = limits![
        Limit::new("requests", LeakyQueue::new(b)).keyed_by(USER),
        Limit::new("input", Gcra::new(a)).cost_of("input").keyed_by(USER),
        Limit::new("team", SlidingWindow::new(c)).cost_of("input").keyed_by(TEAM),
    ];
    compare(&FORWARD, "scheduled units", limits).await;
    let limits = limits![
        Limit::new("streams", InFlight::new(6)).cost_of("streams").keyed_by(USER),
        Limit::new("output", Gcra::new(a).burst(9)).cost_of("output").keyed_by(USER),
    ];
    compare(&FORWARD, "units in flight", limits).await;
}

/// Each of the callers meets another subset of the limits, and one of them none. A limit on requests in flight, a queue
/// and a log are among them.
#[tokio::test]
async fn conditions() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER).only_if((|caller| caller.user > 0) as Condition),
        Limit::new("log", SlidingLog::new(c))
            .keyed_by_some((|caller| caller.team.checked_sub(1)) as fn(&Caller) -> Option<u64>),
        Limit::new("user", Gcra::new(b))
            .keyed_by(USER)
            .only_if((|caller| !(caller.user + caller.team).is_multiple_of(3)) as Condition),
        Limit::new("shadow", FixedWindow::new(a))
            .keyed_by(ALL)
            .only_if((|caller| caller.user == 1) as Condition)
            .shadow(),
    ];
    compare(&FORWARD, "conditions", limits).await;
    let limits = limits![
        Limit::new("streams", InFlight::new(3)).keyed_by(TEAM).only_if((|caller| caller.user == 2) as Condition),
        Limit::new("all", LeakyQueue::new(c)).keyed_by(ALL).only_if((|caller| caller.team == 0) as Condition),
        Limit::new("requests", SlidingWindow::new(b)).keyed_by(USER).fixed_cost(1),
    ];
    compare(&FORWARD, "conditional flights", limits).await;
    let one = Limit::new("one", Gcra::new(a)).keyed_by(USER).only_if((|caller| caller.team == 1) as Condition);
    compare(&FORWARD, "one condition", limits![one]).await;
}

/// Limits that keep units free from some callers, beside a condition, a log and a limit on requests in flight.
#[tokio::test]
async fn kept_free() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("bucket", Gcra::new(a)).keyed_by(ALL).keep_free_by(USER),
        Limit::new("log", SlidingLog::new(b))
            .keyed_by(TEAM)
            .keep_free_by((|caller| 2 * caller.user) as Part)
            .only_if((|caller| caller.user != 1) as Condition),
        Limit::new("user", LeakyQueue::new(c)).keyed_by(USER),
    ];
    compare(&FORWARD, "classes", limits).await;
    let limits = limits![
        Limit::new("streams", InFlight::new(5)).keyed_by(ALL).keep_free_by(USER),
        Limit::new("window", SlidingWindow::new(b))
            .keyed_by(TEAM)
            .keep_free_by((|caller| caller.user + 1) as Part)
            .fixed_cost(2)
            .shadow(),
    ];
    compare(&FORWARD, "classes of flights", limits).await;
    let tiers = [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)];
    let one = Limit::new("one", by_tier(tiers)).keyed_by(TEAM).keep_free_by(USER);
    // Without ids: Redis charges an expired hold by the tier of the next request, and memory by that of the hold.
    compare(&WITHOUT_IDS, "one with classes", limits![one]).await;
}

/// Guaranteed shares of buckets, windows and requests in flight, beside a condition, a class, and a shadow.
#[tokio::test]
async fn shares() {
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let limits = limits![
        Limit::new("share", Gcra::new(quota(2, 1_000)).burst(2)).keyed_by(USER).guarantee(3),
        Limit::new("all", Gcra::new(quota(9, 1_000)).burst(11))
            .keyed_by(ALL)
            .keep_free_by((|caller| 4 * caller.user) as Part),
        Limit::new("team", LeakyQueue::new(quota(4, 1_000))).keyed_by(TEAM).fixed_cost(1),
    ];
    compare(&FORWARD, "shares", limits).await;
    let limits = limits![
        Limit::new("all", SlidingWindow::new(quota(12, 2_000))).keyed_by(ALL),
        Limit::new("share", SlidingWindow::new(quota(2, 2_000)))
            .keyed_by_some((|caller| (caller.user < 2).then_some(caller.user)) as fn(&Caller) -> Option<u64>)
            .guarantee(2),
        Limit::new("trial", SlidingWindow::new(quota(5, 2_000))).keyed_by(ALL).shadow(),
    ];
    compare(&FORWARD, "shares of windows", limits).await;
    let limits = limits![
        Limit::new("share", SlidingLog::new(quota(2, 2_000))).keyed_by(USER).guarantee(3),
        Limit::new("all", SlidingLog::new(quota(9, 2_000)))
            .keyed_by(ALL)
            .only_if((|caller| caller.team == 0) as Condition),
    ];
    compare(&FORWARD, "shares of logs", limits).await;
    let limits = limits![
        Limit::new("share", InFlight::new(1)).keyed_by(USER).guarantee(3),
        Limit::new("all", InFlight::new(6)).keyed_by(ALL),
    ];
    compare(&FORWARD, "shares of flights", limits).await;
}

/// Limits with marks, beside limits without one, a shadow, a log and a limit on requests in flight.
#[tokio::test]
async fn near_limit() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("bucket", Gcra::new(a)).keyed_by(USER).warn_at(0.5),
        Limit::new("log", SlidingLog::new(b)).keyed_by(TEAM).warn_at(0.8),
        Limit::new("window", FixedWindow::new(c)).keyed_by(ALL),
        Limit::new("trial", SlidingWindow::new(c)).keyed_by(TEAM).warn_at(1.0).shadow(),
    ];
    compare(&FORWARD, "marks", limits).await;
    let limits = limits![
        Limit::new("streams", InFlight::new(5)).keyed_by(ALL).warn_at(0.6),
        Limit::new("kept", SlidingLog::new(b)).keyed_by(TEAM).keep_free_by(USER).warn_at(0.7),
    ];
    compare(&FORWARD, "marks of flights", limits).await;
    let queue = Limit::new("queue", LeakyQueue::new(a)).keyed_by(USER).warn_at(0.4);
    compare(&FORWARD, "mark of a queue", limits![queue]).await;
    let log = Limit::new("log", SlidingLog::new(b)).keyed_by(USER).warn_at(0.4);
    compare(&FORWARD, "mark of a log", limits![log]).await;
}

/// Limiters that charge all or none of their limits: each by itself, with units, a shadow, fixed costs and classes.
#[tokio::test]
async fn chains() {
    let [a, b, c] = quotas();
    let user = Limit::new("user", Gcra::new(a)).keyed_by(USER);
    let log = Limit::new("log", SlidingLog::new(b)).cost_of("input").keyed_by(TEAM);
    let shadow = Limit::new("shadow", FixedWindow::new(c)).keyed_by(ALL).shadow();
    compare_chains("chain", [limits![user.clone()], limits![log.clone(), shadow]]).await;
    let requests = Limit::new("requests", FixedWindow::new(c)).keyed_by(TEAM).fixed_cost(1);
    let classes = Limit::new("all", SlidingWindow::new(b))
        .keyed_by(ALL)
        .keep_free_by(USER)
        .only_if((|caller| caller.tier < 2) as Condition);
    compare_chains("chain of conditions", [limits![requests, log], limits![classes, user]]).await;
}

/// Old and new limits of one name in three processes.
#[tokio::test]
async fn old_and_new_processes() {
    let [a, b, c] = quotas();
    compare_processes("old buckets", [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)]).await;
    let aligned = FixedWindow::new(b).aligned_to_clock();
    compare_processes("old windows", [FixedWindow::new(a), aligned, FixedWindow::new(c)]).await;
    let windows = [SlidingWindow::new(a), SlidingWindow::new(b).blocks(7), SlidingWindow::new(c).weighted()];
    compare_processes("old blocks", windows).await;
    compare_processes("old logs", [SlidingLog::new(a), SlidingLog::new(b), SlidingLog::new(c)]).await;
    compare_processes("old flights", [InFlight::new(5), InFlight::new(3), InFlight::new(9)]).await;
}

/// Ids that any of three processes sends again, settles and lets expire.
#[tokio::test]
async fn ids_of_several_processes() {
    let [a, b, c] = quotas();
    let limits = limits![
        Limit::new("user", TokenBucket::new(a).burst(20)).keyed_by(USER),
        Limit::new("team", SlidingLog::new(b)).keyed_by(TEAM).fixed_cost(1),
        Limit::new("input", FixedWindow::new(c)).cost_of("input").keyed_by(USER).shadow(),
    ];
    compare_limiters(&[Trace::Ids], "processes", Arrivals::OneByOne, &|server, name, clock| {
        let processes = [0, 1, 2].map(|_| in_redis(server, name, &limits, clock));
        (in_memory(&limits, clock), BoxLimiter::new(Processes(processes)))
    })
    .await;
}

/// Windows of several calendars beside a rate, and calendars that a key changes: across ends of months, leap days and
/// changes of the clocks. A decision whose client has another window makes a second call, after later requests.
#[tokio::test]
async fn calendars() {
    let berlin = Calendar::monthly_on(31).zone("Europe/Berlin").expect("a zone");
    let tiers =
        [Calendar::monthly(), Calendar::weekly_from(Weekday::Sunday), Calendar::daily().utc_offset_minutes(-570)];
    let tier = by_tier(tiers.map(|calendar| FixedWindow::calendar(9, calendar)));
    let limits = limits![
        Limit::new("month", FixedWindow::calendar(25, berlin)).keyed_by(USER),
        Limit::new("tier", tier).keyed_by(USER),
        Limit::new("smooth", Gcra::new(Quota::per_hour(1))).keyed_by(ALL),
        Limit::new("year", FixedWindow::calendar(200, Calendar::yearly())).keyed_by(ALL).shadow(),
    ];
    compare_limits(&[Trace::Months], "calendars", &limits, Arrivals::OneByOne).await;
}

/// Repeated denials block a key in three processes as in one limiter in memory.
#[tokio::test]
async fn escalation() {
    let escalation = Escalation::new("user", Quota::new(2, Duration::from_secs(20)));
    let escalation = escalation.block_for([3, 9].map(Duration::from_secs)).forget_after(Duration::from_secs(40));
    let (first, second, third) = escalation.limits_by(USER);
    let counts = limits![first, second, third];
    let [quota, of_log, _] = quotas();
    let user = Limit::new("user", Gcra::new(quota)).keyed_by(USER);
    let limits = limits![user, Limit::new("log", SlidingLog::new(of_log)).keyed_by(USER)];
    let seen = compare_limiters(&WITHOUT_IDS, "escalation", Arrivals::OneByOne, &|server, name, clock| {
        let memory = Escalating::new(in_memory(&limits, clock), in_memory(&counts, clock), escalation.clone());
        let process = |_| {
            // The limits of a user are on one cluster slot.
            let build = |builder: RedisBuilder<Caller>| builder.slot_by(USER).build().expect("limits");
            let limiter = build(redis(server, name, &limits, clock));
            let counts = build(redis(server, &format!("{name} counts"), &counts, clock));
            BoxLimiter::new(Escalating::new(limiter, counts, escalation.clone()))
        };
        (BoxLimiter::new(memory), BoxLimiter::new(Processes([0, 1, 2].map(process))))
    })
    .await;
    assert!(seen.blocked * 40 > seen.decisions, "{seen:?}");
}
