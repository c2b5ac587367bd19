//! The link between the client and the server, and its connections.

use std::collections::VecDeque;
use std::task::Waker;

/// A link to a server that runs one call after the other. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// The least delay of each direction, and the most that is added to it. The order is kept.
    pub(crate) delay: u64,
    pub(crate) jitter: u64,
    /// The time that the server spends on a call of the script, and on each operation in it that is not late.
    pub(crate) per_call: u64,
    pub(crate) per_operation: u64,
    /// One call of so many is answered later, by this time.
    pub(crate) slow_reply: Option<(usize, u64)>,
}

#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    /// The master that the connection leads to.
    pub(crate) master: u64,
    pub(super) to_server: Pipe,
    pub(super) to_client: Pipe,
    /// What has arrived at the server, and is no complete command yet.
    pub(crate) received: Vec<u8>,
    /// What has arrived at the client, and was not read yet.
    pub(crate) readable: VecDeque<u8>,
    pub(crate) reader: Option<Waker>,
    /// The client reads the end of the connection after the readable bytes.
    pub(crate) has_ended: bool,
    pub(crate) is_closed_by_client: bool,
}

#[derive(Default)]
pub(super) struct Pipe {
    pub(super) data: VecDeque<Data>,
    pub(super) last_arrival: u64,
    pub(super) loses_data: bool,
}

impl Pipe {
    pub(super) fn next_arrival(&mut self, at: u64) -> Option<Data> {
        let has_arrived = self.data.front().is_some_and(|data| data.arrives_at <= at);
        if has_arrived { self.data.pop_front() } else { None }
    }
}

pub(super) struct Data {
    pub(super) arrives_at: u64,
    pub(super) bytes: Vec<u8>,
    /// When the sender wrote the data.
    pub(super) written_at: u64,
    /// The call whose reply ends with this data.
    pub(super) call: Option<usize>,
    /// The connection ends after this data.
    pub(super) is_last: bool,
}
