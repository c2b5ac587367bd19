//! Leases of several limits, of quotas chosen by the key, and of shadow limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::store::{IntoRedisLimits, Lease};
use tower_ratelimit::{
    AcquireOptions, Decision, DecisionSource, Detail, FixedWindow, Gcra, Limit, LimitStatus, Limiter as _, Quota,
    Redis, RedisServer, SlidingLog, SlidingWindow, TokenBucket, Verdict, per_key,
};

use crate::helpers::acquire;
use crate::lease_audit::{Audit, Bucket, Entry, audit};
use crate::leases::{
    Admitted, DURATION, MAX_ROUNDS, acquire_many, clock, direct, leased, until_leased, until_many_leased,
};
use crate::proxy::Proxy;
use crate::server::Server;

/// Every user has a limit, and all users together.
fn user_and_all(user: u64, all: u64) -> impl IntoRedisLimits<str> {
    (
        Limit::new("user", FixedWindow::new(Quota::per_day(user))),
        Limit::new("all", FixedWindow::new(Quota::per_day(all))).keyed_by(|_: &str| ()),
    )
}

/// Returns what is left of each limit, in Redis.
async fn rests(server: RedisServer, limits: impl IntoRedisLimits<str>, key: &str) -> Vec<u64> {
    let direct = direct::<str>(server, limits).build().expect("limits");
    let peeked = direct.peek(key, AcquireOptions::cost(0).detail(Detail::All)).await.expect("an answer");
    peeked.limits().iter().map(LimitStatus::remaining).collect()
}

async fn decide(limiter: &Redis<str>, key: &str) -> Decision {
    crate::leases::decide(limiter, key, AcquireOptions::default()).await
}

/// Each limit's account is exact, whichever limit ends the admissions.
#[tokio::test]
async fn each_limit_admits_what_it_allows() {
    let (server, limits) = (Server::start(), || user_and_all(1_500, 4_000));
    let limiters = [leased(server.open(), limits()), leased(server.open(), limits())];
    let mut admitted = [Admitted::default(); 3];
    for (user, admitted) in ["alice", "bob", "carol"].into_iter().zip(&mut admitted) {
        until_many_leased(&limiters, user, admitted).await;
    }
    for _ in 0..20 {
        for limiter in &limiters {
            for (user, admitted) in ["alice", "bob", "carol"].into_iter().zip(&mut admitted) {
                acquire_many(limiter, user, 30, admitted).await;
            }
        }
    }
    for limiter in &limiters {
        limiter.close().await.expect("an answer");
    }
    let all: u64 = admitted.iter().map(|user| user.all()).sum();
    for (user, admitted) in ["alice", "bob", "carol"].into_iter().zip(&admitted) {
        let rests = rests(server.open(), limits(), user).await;
        assert_eq!(rests, [1_500 - admitted.all(), 4_000 - all], "{user}: {admitted:?}");
    }
    // Both limits are reached, and then Redis decides.
    for (user, admitted) in ["alice", "bob", "carol"].into_iter().zip(&mut admitted) {
        acquire_many(&limiters[0], user, 1_500, admitted).await;
    }
    let admitted = admitted.map(Admitted::all);
    assert!(admitted.iter().sum::<u64>() == 4_000 && admitted.iter().all(|user| *user <= 1_500), "{admitted:?}");
}

/// The processes' leases on a key that all users share: one each.
#[tokio::test]
async fn shared_sub_key_has_one_lease_per_process() {
    let (server, limits) = (Server::start(), || user_and_all(100_000, 1_000_000));
    let limiters = [leased(server.open(), limits()), leased(server.open(), limits())];
    for round in 0.. {
        assert!(round < MAX_ROUNDS, "leases of all at a time");
        let mut by_lease = 0;
        for limiter in &limiters {
            for user in ["alice", "bob", "carol"] {
                by_lease += u32::from(decide(limiter, user).await.source() == DecisionSource::Lease);
            }
        }
        if by_lease == 6 {
            break;
        }
    }
    // A window has five words. Behind them, the eleventh is the number of entries.
    let script = "return struct.unpack('<d', redis.call('GET', KEYS[1]), 121)";
    let key = limiters[0].redis_key("all", "alice").expect("a limit");
    assert_eq!(server.number(&["EVAL", script, "1", &key]), 2);
    for user in ["alice", "bob", "carol"] {
        let key = limiters[0].redis_key("user", user).expect("a limit");
        assert_eq!(server.number(&["EVAL", script, "1", &key]), 2, "{user}");
    }
}

/// Units that no decision could spend are not held: the users are cold, so their decisions are made in Redis.
#[tokio::test]
async fn cold_sub_keys_keep_shared_units_free() {
    #[derive(Clone, Default)]
    struct Reports(Arc<AtomicU64>);
    impl Observer for Reports {
        fn observe(&self, event: &Event<'_>) {
            if let Event::LeaseRenewed { .. } = event {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let (server, reports) = (Server::start(), Reports::default());
    let limiter = direct(server.open(), user_and_all(1_000, 100_000)).lease(Lease::new(DURATION));
    let limiter = limiter.observe(reports.clone()).build().expect("limits");
    for user in 0..300 {
        assert_eq!(decide(&limiter, &user.to_string()).await.source(), DecisionSource::Store);
    }
    assert_eq!(reports.0.load(Ordering::Relaxed), 0);
    // With a hot user, both limits are leased.
    until_leased(&limiter, "alice").await;
    assert_eq!(decide(&limiter, "alice").await.limits().len(), 1, "the most restrictive limit");
    let all = AcquireOptions::default().detail(Detail::All);
    let decision = acquire(&limiter, "alice", all).await.expect("an answer").decision;
    assert_eq!(decision.source(), DecisionSource::Lease);
    assert_eq!(decision.limits().iter().map(LimitStatus::name).collect::<Vec<_>>(), ["user", "all"]);
    assert_eq!(decision.limits().iter().map(LimitStatus::limit).collect::<Vec<_>>(), [1_000, 100_000]);
}

/// Requests beside tokens: each limit spends its own cost.
#[tokio::test]
async fn limits_have_costs_of_their_own() {
    let limits = || {
        (
            Limit::new("tokens", TokenBucket::new(Quota::per_day(40_000))),
            Limit::new("requests", SlidingLog::new(Quota::per_day(4_000))).fixed_cost(1),
        )
    };
    let server = Server::start();
    let limiter = leased(server.open(), limits());
    let mut admitted = Admitted::default();
    while admitted.leased < 50 {
        let decision = crate::leases::decide(&limiter, "alice", AcquireOptions::cost(10)).await;
        assert!(decision.is_allowed(), "{decision:?} after {admitted:?}");
        match decision.source() {
            DecisionSource::Lease => admitted.leased += 1,
            _ => admitted.direct += 1,
        }
    }
    // A cost of 0 at one limit, which Redis decides.
    let free = acquire(&limiter, "alice", AcquireOptions::cost(0)).await.expect("an answer").decision;
    assert_eq!(free.source(), DecisionSource::Store);
    limiter.close().await.expect("an answer");
    let requests = admitted.all() + 1;
    assert_eq!(rests(server.open(), limits(), "alice").await, [40_000 - admitted.all() * 10, 4_000 - requests]);
}

const FREE: SlidingWindow = SlidingWindow::new(Quota::per_day(800));
const PAID: SlidingWindow = SlidingWindow::new(Quota::per_day(3_000));

/// Each tier's keys admit what the tier allows.
#[tokio::test]
async fn quota_chosen_by_the_key() {
    let limits = || per_key(|user: &str| if user.starts_with("paid") { PAID } else { FREE });
    let server = Server::start();
    for (user, limit) in [("free-alice", 800), ("paid-bob", 3_000)] {
        let limiters = [leased(server.open(), limits()), leased(server.open(), limits())];
        let mut admitted = Admitted::default();
        until_many_leased(&limiters, user, &mut admitted).await;
        let decision = decide(&limiters[0], user).await;
        admitted.direct += u64::from(decision.is_allowed());
        assert_eq!(decision.most_restrictive().expect("a limit").limit(), limit);
        for limiter in &limiters {
            limiter.close().await.expect("an answer");
        }
        acquire_many(&limiters[0], user, limit, &mut admitted).await;
        assert_eq!(admitted.all(), limit, "{user}: {admitted:?}");
    }
}

/// A change of the tier takes effect with the next decision of the process.
#[tokio::test]
async fn changed_quota_of_a_key_takes_effect_at_once() {
    static LIMIT: AtomicU64 = AtomicU64::new(3_000);
    let limits = || per_key(|_: &str| FixedWindow::new(Quota::per_day(LIMIT.load(Ordering::Relaxed))));
    let server = Server::start();
    let limiter = leased(server.open(), limits());
    let mut admitted = until_leased(&limiter, "alice").await;
    acquire_many(&limiter, "alice", 100, &mut admitted).await;
    LIMIT.store(50, Ordering::Relaxed);
    let denied = decide(&limiter, "alice").await;
    assert!(!denied.is_allowed() && denied.source() == DecisionSource::Store, "{denied:?}");
    LIMIT.store(4_000, Ordering::Relaxed);
    let allowed = decide(&limiter, "alice").await;
    assert!(allowed.is_allowed(), "{allowed:?}");
    let mut later = until_leased(&limiter, "alice").await;
    assert_eq!(decide(&limiter, "alice").await.most_restrictive().expect("a limit").limit(), 4_000);
    later.direct += 2;
    limiter.close().await.expect("an answer");
    let left = rests(server.open(), limits(), "alice").await;
    assert_eq!(left, [4_000 - admitted.all() - later.all()]);
}

/// A shadow limit without room lists a denial in leased decisions, and does not stop them.
#[tokio::test]
async fn shadow_limit_without_room_does_not_stop_leases() {
    let limits = || {
        (
            Limit::new("all", Gcra::new(Quota::per_day(100_000))),
            Limit::new("trial", FixedWindow::new(Quota::per_day(40))).shadow(),
        )
    };
    let server = Server::start();
    let limiter = leased(server.open(), limits());
    let (mut in_trial, mut admitted, mut denied_by_trial) = (0, 0, 0);
    while denied_by_trial < 200 {
        assert!(admitted < MAX_ROUNDS, "{admitted} admitted, {in_trial} in the trial");
        let decision = decide(&limiter, "alice").await;
        assert!(decision.is_allowed());
        assert_eq!(decision.limits().len(), 2);
        admitted += 1;
        let is_denied = decision.shadow_denials().count() > 0;
        in_trial += u64::from(!is_denied);
        denied_by_trial += u64::from(is_denied && decision.source() == DecisionSource::Lease);
        if decision.source() == DecisionSource::Lease {
            let shadow = &decision.limits()[1];
            assert!(shadow.is_shadow() && shadow.limit() == 40, "{decision:?}");
        }
    }
    assert!(in_trial <= 40, "{in_trial}");
    // A cost that the shadow could never allow.
    let large = acquire(&limiter, "alice", AcquireOptions::cost(60)).await.expect("an answer").decision;
    assert!(
        large.is_allowed() && large.shadow_denials().any(|limit| limit.verdict() == Verdict::ExceedsLimit),
        "{large:?}"
    );
    limiter.close().await.expect("an answer");
    let left = rests(server.open(), limits(), "alice").await;
    assert_eq!(left[0], 100_000 - admitted - 60);
    assert!(left[1] <= 40 - in_trial, "{left:?}");
}

/// Three processes, three users, two limits, demand far above both, and replies that are lost.
#[tokio::test]
async fn no_limit_is_exceeded_in_any_window() {
    const USER: u64 = 400;
    const ALL: u64 = 700;
    /// A report may be on its way while time passes once.
    const STEP: Duration = Duration::from_millis(1);
    let (server, clock) = (Server::start(), clock());
    let proxies = [(); 3].map(|()| Proxy::before(server.socket()));
    let limiters = proxies.each_ref().map(|proxy| {
        let server = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let limits = (
            Limit::new("user", Gcra::new(Quota::per_second(USER))),
            Limit::new("all", Gcra::new(Quota::per_second(ALL))).keyed_by(|_: &str| ()),
        );
        let limiter = direct::<str>(server, limits).lease(Lease::new(Duration::from_millis(300)));
        limiter.deadline(Duration::from_millis(200)).build().expect("limits")
    });
    let (mut log, mut leased) = (Vec::new(), 0);
    for round in 0..2_000_u64 {
        if round % 100 == 99 {
            proxies[usize::try_from(round / 100 % 3).expect("below 3")].cut_next_reply();
        }
        for (number, limiter) in (0..).zip(&limiters) {
            let key = u32::try_from((round / 40 + number) % 3).expect("below 3");
            // A decision without a reply may have been charged, and was not admitted.
            if let Ok(outcome) = acquire(limiter, &key.to_string(), AcquireOptions::default()).await {
                let decision = outcome.decision;
                leased += u64::from(decision.source() == DecisionSource::Lease);
                log.push(Entry { time: decision.decided_at().as_micros(), key, is_admitted: decision.is_allowed() });
            }
        }
        clock.advance(STEP);
        // The tasks wait in real time. Their reports are before the peeks on the connections.
        sleep(Duration::from_millis(1)).await;
        for limiter in &limiters {
            let _ = limiter.peek("0", AcquireOptions::default()).await;
        }
    }
    assert!(leased > 100, "{leased} by leases");
    let all = log.iter().map(|entry| Entry { key: 0, ..entry.clone() }).collect();
    let bucket = |rate| Bucket { rate, burst: rate, skew: STEP };
    let audits: [Audit; 2] = [audit(log, bucket(USER)), audit(all, bucket(ALL))];
    assert!(audits.iter().all(|audit| audit.beyond == 0 && audit.admitted > ALL), "{audits:?}, {leased} by leases");
}

/// The decisions of both kinds together see the mark, also if another process has most of the usage.
#[tokio::test]
async fn leased_decisions_signal_the_mark_by_their_estimate() {
    let server = Server::start();
    let limits = || Limit::new("api", FixedWindow::new(Quota::per_day(4_000))).warn_at(0.5);
    let limiter = leased(server.open(), limits());
    until_leased(&limiter, "alice").await;
    let first = decide(&limiter, "alice").await;
    assert!(first.is_allowed() && !first.is_near_limit());
    let other = direct::<str>(server.open(), limits()).build().expect("limits");
    assert!(acquire(&other, "alice", AcquireOptions::cost(2_500)).await.expect("an answer").decision.is_allowed());
    let (mut crossed, mut is_near) = (Vec::new(), false);
    for _ in 0..400 {
        let decision = decide(&limiter, "alice").await;
        assert!(decision.is_allowed());
        if decision.limits().iter().any(LimitStatus::crossed_mark) {
            crossed.push(decision.source());
        }
        is_near = decision.is_near_limit();
    }
    assert_eq!(crossed, [DecisionSource::Lease], "after a report, once");
    assert!(is_near);
}
