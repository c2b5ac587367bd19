//! Redis, against a real one.

mod addresses;
mod basics;
mod cancellation;
mod cell;
mod conformance;
mod differential;
mod exactness;
mod example;
mod faults;
mod helpers;
mod keys;
mod order;
mod proxy;
mod server;
mod ttl;
