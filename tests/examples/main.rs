//! Runs the examples of the root package as processes, and checks what they print and answer. The examples that are packages of
//! their own have their tests beside them.

mod examples;
#[path = "../servers/process.rs"]
mod process;
mod scenarios;
