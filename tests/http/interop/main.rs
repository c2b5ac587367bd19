//! Tests with other programs: gRPC clients and servers, and clients that leave.

mod grpc;
mod impatient;
