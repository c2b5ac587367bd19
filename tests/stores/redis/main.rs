//! The Redis stores on real servers that the tests start.

#[allow(dead_code, unused_macro_rules, reason = "the model of leases has places of mistakes; the unit tests make them")]
#[macro_use]
#[path = "../../mistake.rs"]
mod mistake;

mod addresses;
mod batch_work;
mod calendar;
mod cancellation;
mod cell;
#[path = "../../servers/certificates.rs"]
mod certificates;
mod chained;
mod child;
mod circuit_breaker;
mod clock;
mod cluster;
#[path = "../../servers/cluster_server.rs"]
mod cluster_server;
mod conditions;
mod config;
mod conflicts;
mod credentials;
mod deployments;
mod differential;
mod escalating;
mod exactness;
mod examples;
mod fail_over;
mod faults;
mod goodput;
mod helpers;
mod holds;
mod idempotency;
mod idle_connections;
mod ids;
mod in_flight;
mod keys;
mod law_checks;
mod lease_chaos;
mod lease_combinators;
mod lease_fail_over;
mod lease_law;
mod lease_operations;
mod leases;
mod load;
mod lua;
#[allow(dead_code, reason = "the program in `oracle` uses all of it")]
#[path = "../../../oracle/src/model.rs"]
mod oracle_model;
mod order;
mod panics;
mod pools;
#[path = "../../servers/process.rs"]
mod process;
mod process_death;
mod proxy;
#[path = "../../../src/random.rs"]
mod random;
mod reservation_ids;
mod routes;
#[allow(clippy::float_cmp, reason = "the numbers are whole")]
mod script_model;
#[allow(clippy::float_cmp, reason = "the numbers are whole")]
mod script_values;
mod secure;
mod sentinel;
#[path = "../../servers/sentinel_server.rs"]
mod sentinel_server;
#[path = "../../servers/server.rs"]
mod server;
mod sharding;
mod shares;
mod shutdown;
mod sliding_log;
mod ttl;
mod units;
mod waiting;
