//! gRPC on real sockets: tonic's servers and clients, in plaintext and over TLS; a server that speaks HTTP as well; and
//! what a refusal looks like byte by byte.
//!
//! The limiter's clock is moved by hand.

mod answers;
mod calls;
mod ports;
mod refusals;
mod settling;
mod support;
