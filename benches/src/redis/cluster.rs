//! One Redis, and one to three masters of a cluster: what a decision costs them. How many there are in a second is for the
//! machine to say: with fewer cores than masters and clients together, more masters decide no more.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tower_ratelimit::limiter::Chained;
use tower_ratelimit::{AcquireOptions, Gcra, Limit, Limiter, Redis, RedisServer};

use super::contenders::{Contender, Keys, PLENTY, contender};
use super::server::Server;
use crate::harness::Harness;

const MASTERS: [(&str, usize); 4] = [("one_redis", 0), ("1_master", 1), ("2_masters", 2), ("3_masters", 3)];
const SLOTS: usize = 16_384;

pub(super) fn run(harness: &Harness, runtime: &Runtime) {
    // How many tags choose the slots; with none each key has a slot of its own.
    let scenarios =
        [("redis masters 512", None), ("redis masters 512 96 tags", Some(96)), ("redis masters 512 12 tags", Some(12))];
    let two_phases = "redis masters 512 user and all";
    if !scenarios.iter().any(|(scenario, _)| harness.wants(scenario)) && !harness.wants(two_phases) {
        return;
    }
    let deployments: Vec<_> = MASTERS.iter().map(|&(_, masters)| Nodes::start(masters)).collect();
    for (scenario, tags) in scenarios {
        if harness.wants(scenario) {
            let contenders: Vec<_> =
                MASTERS.iter().zip(&deployments).map(|(&(name, _), nodes)| nodes.one_limit(name, tags)).collect();
            super::compare(harness, runtime, scenario, 512, Keys::Spread, &contenders, &|index| {
                deployments[index].cpu()
            });
        }
    }
    if harness.wants(two_phases) {
        let three = &deployments[3];
        let contenders = [three.in_two_phases(), three.in_one_slot()];
        super::compare(harness, runtime, two_phases, 512, Keys::Spread, &contenders, &|_| three.cpu());
    }
}

/// The masters of a cluster, or one Redis by itself.
struct Nodes {
    nodes: Vec<Server>,
    is_cluster: bool,
}

impl Nodes {
    /// None is one Redis by itself.
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
        let patience = Instant::now() + Duration::from_secs(40);
        let is_whole = |node: &Server| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains(&size)
        };
        while !nodes.iter().all(is_whole) {
            assert!(Instant::now() < patience, "the cluster does not come together");
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

    fn one_limit(&self, name: &'static str, tags: Option<u64>) -> Contender {
        let mut builder = Redis::<u64>::builder(self.open(), &format!("{name}-{tags:?}"), Gcra::new(PLENTY));
        if let Some(tags) = tags {
            builder = builder.slot_by(move |key| key % tags);
        }
        asked(name, builder.deadline(PATIENCE).build().expect("limits"))
    }

    fn in_two_phases(&self) -> Contender {
        let user = Limit::new("user", Gcra::new(PLENTY));
        let user = Redis::<u64>::builder(self.open(), "user", user).deadline(PATIENCE).build().expect("limits");
        let all = Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ());
        let all = Redis::builder(self.open(), "all", all).deadline(PATIENCE).build().expect("limits");
        asked("two_phases", Chained::new(user, all))
    }

    fn in_one_slot(&self) -> Contender {
        let limits =
            (Limit::new("user", Gcra::new(PLENTY)), Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ()));
        asked("one_slot", Redis::builder(self.open(), "both", limits).deadline(PATIENCE).build().expect("limits"))
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

fn asked<L>(name: &'static str, limiter: L) -> Contender
where
    L: Limiter<u64> + Send + Sync + 'static,
{
    let contender = contender(name, move |key| {
        let decided = limiter.acquire(&key, AcquireOptions::default());
        Box::pin(async move {
            decided.await.expect("an answer");
        })
    });
    contender.expect("it is there")
}
