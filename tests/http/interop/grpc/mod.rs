//! gRPC on sockets: tonic's servers and clients in plaintext and over TLS, servers for gRPC and HTTP, and rejections
//! field by field. The clock is manual.

mod answers;
mod calls;
mod in_flight;
mod ports;
mod refusals;
mod settling;
pub(crate) mod support;
