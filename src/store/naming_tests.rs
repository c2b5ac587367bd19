//! The names of limits for a layer's queue: all stores distinguish the same requests.

use crate::limiter::{Limiter, LimitsOfKey};
use crate::store::{RedisServer, StoreLimits};
use crate::{Gcra, Limit, Memory, Quota, Redis};

/// (tenant, class).
type Call = (u64, u64);

const CALLS: [Call; 8] = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];

/// For each pair of calls the names of the limits in whose queue both wait.
fn common_queues(name_limits: impl Fn(&Call, &mut LimitsOfKey<'_>)) -> Vec<Vec<String>> {
    let named = |call: &Call| {
        let mut named = Vec::new();
        name_limits(
            call,
            &mut LimitsOfKey::new(&mut |limit| {
                let class = (limit.id, limit.kept_free, limit.share);
                named.push((limit.name.to_owned(), class));
            }),
        );
        named
    };
    let pairs = CALLS.iter().flat_map(|a| CALLS.iter().map(move |b| (named(a), named(b))));
    let common = pairs.map(|(a, b)| a.into_iter().filter(|name| b.contains(name)).map(|(name, _)| name).collect());
    common.collect()
}

#[test]
fn all_stores_name_the_same_queues_beside_shares_and_kept_units() {
    // The classes keep less, as much and more free than the shares, which are 2 * 4 units.
    for kept in [0, 3, 8, 9] {
        let limits = || {
            let quota = |burst| Gcra::new(Quota::per_second(burst)).burst(burst);
            let share = Limit::new("share", quota(4)).keyed_by_some(|call: &Call| Some(call.0).filter(|id| *id < 2));
            let all = Limit::new("all", quota(20)).keyed_by(|_: &Call| ());
            let all = all.keep_free_by(move |call: &Call| if call.1 == 0 { kept } else { 0 });
            let tenant = Limit::new("tenant", quota(9)).keyed_by(|call: &Call| call.0).fixed_cost(1);
            (share.guarantee(2), all, tenant)
        };
        let memory = Memory::new(limits());
        let redis = Redis::new(RedisServer::open("redis://127.0.0.1:1").expect("an address"), "api", limits());
        let own = StoreLimits::new(limits()).expect("limits");
        let expected = common_queues(|call, names| memory.limits_of(call, names));
        assert_eq!(common_queues(|call, names| redis.limits_of(call, names)), expected, "{kept} kept free, Redis");
        assert_eq!(common_queues(|call, names| own.limits_of(call, names)), expected, "{kept} kept free, own");
        // Calls without a share: the last two tenants. Only a class that keeps more free than the shares has its own queue.
        let together = &expected[4 * CALLS.len() + 7];
        assert_eq!(together.contains(&"all".to_owned()), kept <= 8);
    }
}
