//! The processor time of a decision on one Redis server, and on clusters of one to three masters.
//!
//! Decisions per second depend on the machine: with fewer cores than masters and clients, more masters decide no more.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::{AcquireOptions, Gcra, Limit, Limiter, Redis, RedisServer};

use super::competitors::{Contestant, Keys, PLENTY, contestant};
use super::server::Server;
use crate::harness::Harness;

const MASTERS: [(&str, usize); 4] = [("one_redis", 0), ("1_master", 1), ("2_masters", 2), ("3_masters", 3)];
const SLOTS: usize = 16_384;

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
struct Nodes {
    nodes: Vec<Server>,
    is_cluster: bool,
}

impl Nodes {
    /// Starts the servers. Zero masters means one Redis server without cluster mode.
    fn start(masters: usize) -> Self {
        if masters == 0 {
            return Self { nodes: vec![Server::start()], is_cluster: false };
        }
        let nodes: Vec<_> = (0..masters).map(|_| Server::node()).collect();
        for (index, node) in nodes.iter().enumerate() {
            let (first, next) = (SLOTS * index / masters, SLOTS * (index + 1) / masters);
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(next - 1).to_string()]);
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port().to_string()]);
        }
        let size = format!("cluster_size:{masters}");
        let give_up_at = Instant::now() + Duration::from_secs(40);
        let is_complete = |node: &Server| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&size)
        };
        while !nodes.iter().all(is_complete) {
            assert!(Instant::now() < give_up_at, "the cluster is not complete after 40 s");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { nodes, is_cluster: true }
    }

    fn open(&self) -> RedisServer {
        if self.is_cluster {
            RedisServer::cluster(self.nodes.iter().map(Server::address)).expect("addresses")
        } else {
            self.nodes[0].open()
        }
    }

    fn cpu(&self) -> f64 {
        self.nodes.iter().map(Server::cpu).sum()
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
