//! Who the client is: no client chooses its own key, and none lifts its limit.
//!
//! - `table`: what is found behind which proxies, from the standards and from published attacks
//! - `properties`: what holds of every header field
//! - `rendered`: whatever a well-formed field says is read
//! - `mutations`: fuzzing, bounded; `FUZZ_ROUNDS=100000000` lasts longer, `FUZZ_SEED=7` goes another way
//! - `exemptions`: whom an exemption by the client's address exempts
//! - `servers`: real requests over sockets

mod exemptions;
mod fuzz;
mod invariants;
mod properties;
mod rendered;
mod servers;
mod support;
mod table;
