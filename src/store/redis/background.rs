//! Tasks that work for all runtimes of a process, such as probes, and renewals of holds and leases.
//!
//! A runtime may be parked, or driven only while `block_on` waits for a call. Its tasks then make no progress, and do not
//! end. So no work may depend on one task: another runtime, or a call, must be able to take it over.

use std::future::Future;

use tokio::runtime::Handle;

/// Spawns such a task.
pub(crate) fn spawn(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    #[cfg(test)]
    let task = super::simulation_tests::gate::Gated::new(task);
    runtime.spawn(task);
}
