//! The processor time of a decision on one Redis server, and on clusters of one to three masters.
//!
//! Decisions per second depend on the machine: with fewer cores than masters and clients, more masters decide no more.

use std::time::Duration;

use tokio::runtime::Runtime;
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::{AcquireOptions, Gcra, Limit, Limiter, Redis, RedisServer};

use super::competitors::{Contestant, Keys, PLENTY, contestant};
use crate::cluster_server::Cluster;
use crate::harness::Harness;
use crate::server::Server;

const MASTERS: [(&str, usize); 4] = [("one_redis", 0), ("1_master", 1), ("2_masters", 2), ("3_masters", 3)];

pub(super) fn run(harness: &Harness, runtime: &Runtime) {
    // The number of hash tags. Without tags each key has its own cluster slot.
    let scenarios =
        [("redis masters 512", None), ("redis masters 512 96 tags", Some(96)), ("redis masters 512 12 tags", Some(12))];
    let chained = "redis masters 512 chained";
    if !scenarios.iter().any(|(scenario, _)| harness.wants(scenario)) && !harness.wants(chained) {
        return;
    }
    let deployments: Vec<_> = MASTERS.iter().map(|&(_, masters)| Nodes::start(masters)).collect();
    for (scenario, tags) in scenarios {
        if harness.wants(scenario) {
            let contestants: Vec<_> =
                MASTERS.iter().zip(&deployments).map(|(&(name, _), nodes)| nodes.one_limit(name, tags)).collect();
            super::compare(harness, runtime, scenario, 512, Keys::Spread, &contestants, &|index| {
                deployments[index].cpu()
            });
        }
    }
    if harness.wants(chained) {
        let three = &deployments[3];
        let contestants = [three.chained(), three.one_slot()];
        super::compare(harness, runtime, chained, 512, Keys::Spread, &contestants, &|_| three.cpu());
    }
}

/// The masters of a cluster, or one Redis server without cluster mode.
enum Nodes {
    One(Server),
    Cluster(Cluster),
}

impl Nodes {
    /// Starts the servers. Zero masters means one Redis server without cluster mode.
    fn start(masters: usize) -> Self {
        match masters {
            0 => Self::One(Server::start()),
            _ => Self::Cluster(Cluster::masters(masters, |_| Server::node_with(&[]))),
        }
    }

    fn open(&self) -> RedisServer {
        match self {
            Self::One(server) => server.open(),
            Self::Cluster(cluster) => cluster.open(),
        }
    }

    fn cpu(&self) -> f64 {
        match self {
            Self::One(server) => server.cpu(),
            Self::Cluster(cluster) => cluster.nodes.iter().map(Server::cpu).sum(),
        }
    }

    fn one_limit(&self, name: &'static str, tags: Option<u64>) -> Contestant {
        let mut builder = Redis::<u64>::builder(self.open(), &format!("{name}-{tags:?}"), Gcra::new(PLENTY));
        if let Some(tags) = tags {
            builder = builder.slot_by(move |key| key % tags);
        }
        contestant_of(name, builder.deadline(DEADLINE).build().expect("limits"))
    }

    fn chained(&self) -> Contestant {
        let user = Limit::new("user", Gcra::new(PLENTY));
        let user = Redis::<u64>::builder(self.open(), "user", user).deadline(DEADLINE).build().expect("limits");
        let all = Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ());
        let all = Redis::builder(self.open(), "all", all).deadline(DEADLINE).build().expect("limits");
        contestant_of("chained", Chained::new(user, all))
    }

    fn one_slot(&self) -> Contestant {
        let limits =
            (Limit::new("user", Gcra::new(PLENTY)), Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ()));
        contestant_of(
            "one_slot",
            Redis::builder(self.open(), "both", limits).deadline(DEADLINE).build().expect("limits"),
        )
    }
}

const DEADLINE: Duration = Duration::from_secs(5);

fn contestant_of<L>(name: &'static str, limiter: L) -> Contestant
where
    L: Limiter<u64> + Send + Sync + 'static,
{
    let contestant = contestant(name, move |key| {
        let decided = limiter.acquire(&key, AcquireOptions::default());
        Box::pin(async move {
            let _ = decided.await.expect("a decision");
        })
    });
    contestant.expect("always present")
}
