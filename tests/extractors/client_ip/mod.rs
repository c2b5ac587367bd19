//! The client address extractors: no client chooses its key or avoids its limit.
//!
//! - `table`: the extracted address for many requests, from the standards and from published attacks
//! - `properties`: properties of every header field
//! - `rendered`: well-formed fields are parsed completely
//! - `fuzz`: bounded fuzzing; `FUZZ_ROUNDS=100000000` runs longer, `FUZZ_SEED=7` sets another seed
//! - `exemptions`: exemptions by the client's address
//! - `servers`: requests over sockets

mod exemptions;
mod fuzz;
mod invariants;
mod properties;
mod rendered;
mod servers;
mod support;
mod table;
