//! Tests with other programs: gRPC clients and servers, and the examples as processes.

mod example_scenarios;
mod examples;
mod grpc;
mod impatient;
#[path = "../servers/process.rs"]
mod process;
mod restart;
