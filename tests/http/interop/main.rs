//! Tests with other programs: gRPC clients and servers, clients that leave, and paced streams.

mod grpc;
mod impatient;
mod paced;
#[path = "../tasks.rs"]
mod tasks;
