//! The crate beside foreign programs: gRPC clients and servers, and the examples as processes.

mod examples;
mod examples_more;
mod grpc;
