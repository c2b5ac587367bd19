//! Redis, against a real one.

mod basics;
mod differential;
mod exactness;
mod faults;
mod helpers;
mod proxy;
mod server;
