use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;

/// What went wrong with a call, and what that means.
pub(super) struct Failure {
    pub(super) error: Error,
    /// The connection is of no use any more.
    pub(super) breaks: bool,
    /// It was lost, and with it all that was under way.
    pub(super) lost: bool,
    /// The server itself answered, so that it is worth asking.
    pub(super) answered: bool,
}

impl Failure {
    /// From an error of the client or of the server.
    pub(super) fn of(error: RedisError) -> Self {
        let (message, breaks, answered) = explain(&error);
        let lost = breaks && error.code().is_none();
        Self { error: Error::unavailable(message).with_source(error), breaks, lost, answered }
    }

    /// The server answered, and not as it should.
    pub(super) fn answered(error: Error) -> Self {
        Self { error, breaks: false, lost: false, answered: true }
    }

    pub(super) fn timed_out(message: String) -> Self {
        // What comes late would be read by nobody, but a connection may be half open: a new one tells.
        Self { error: Error::unavailable(message), breaks: true, lost: false, answered: false }
    }
}

/// What it was and how to mend it, whether a new connection is needed, whether the server could decide if asked again.
fn explain(error: &RedisError) -> (&'static str, bool, bool) {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            ("this Redis is a read-only replica: its master must be asked", true, false)
        }
        ErrorKind::Server(ServerErrorKind::MasterDown) => {
            ("this Redis is a replica that has lost its master, and does not answer", true, false)
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => ("Redis is still loading its data", false, false),
        ErrorKind::Server(ServerErrorKind::ClusterDown) => ("the Redis cluster is down", false, false),
        ErrorKind::Server(ServerErrorKind::CrossSlot) => (
            "the keys of these limits are in different slots of a Redis cluster: limits that decide together must share one",
            false,
            false,
        ),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {
            ("this Redis is a node of a cluster, and holds other keys: it must be asked as a cluster", false, false)
        }
        ErrorKind::Server(ServerErrorKind::NoPerm) => (
            "the user of this connection may not run the limiter's script: it needs EVAL, EVALSHA, SCRIPT LOAD and the commands GET, MGET, \
             PSETEX, SET, DEL, EXISTS, TIME, GETRANGE, SETRANGE, PEXPIRE on the limiter's keys",
            false,
            false,
        ),
        ErrorKind::AuthenticationFailed => ("Redis refused the user's name or password", true, false),
        _ => match error.code() {
            Some("OOM") => (
                "Redis has no memory left (`maxmemory`), and refuses to write: give it more, or let it evict",
                false,
                false,
            ),
            Some("BUSY") => ("Redis is busy with a script of somebody's that does not end", false, false),
            Some("NOREPLICAS") => {
                ("Redis has too few replicas in reach to write (`min-replicas-to-write`)", false, false)
            }
            Some("MISCONF") => ("Redis refuses to write, as it can't save its data", false, false),
            Some("NOAUTH") => ("Redis wants a password, and was given none", true, false),
            Some("WRONGPASS") => ("Redis refused the user's name or password", true, false),
            Some("WRONGTYPE") => {
                ("a key of the limiter is in use for something else: choose another prefix", false, true)
            }
            Some("UNKILLABLE" | "NOPROTO" | "ERR") => ("Redis refused the limiter's script", false, true),
            Some(_) => ("Redis answered with an error", false, true),
            None => ("the connection to Redis failed", true, false),
        },
    }
}
