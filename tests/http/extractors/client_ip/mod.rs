//! The client address extractors: no client chooses its key or avoids its limit.
//!
//! - `table`: the extracted address for many requests, from the standards and from published attacks
//! - `properties`: properties of every header field
//! - `rendered`: well-formed fields are parsed completely
//! - `exemptions`: exemptions by the client's address
//! - `servers`: requests over sockets

mod exemptions;
mod properties;
mod rendered;
mod servers;
mod support;
mod table;
