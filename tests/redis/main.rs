//! Redis, against a real one.

mod addresses;
mod basics;
mod cancellation;
mod cell;
mod cluster;
mod conformance;
mod deployments;
mod differential;
mod exactness;
mod example;
mod fail_over;
mod faults;
mod helpers;
mod keys;
mod load;
mod lua;
mod neighbours;
mod nodes;
mod order;
mod proxy;
mod secure;
mod sentinel;
mod server;
mod ttl;
mod two_phase;
mod watched;
