use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;

/// What went wrong with a call, and what that means.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection is of no use any more.
    pub(crate) breaks: bool,
    /// The server itself answered, so that it is worth asking.
    pub(crate) answered: bool,
}

impl Failure {
    /// From an error of the client or of the server.
    pub(crate) fn of(error: RedisError) -> Self {
        let (message, breaks, answered) = explain(&error);
        Self { error: Error::unavailable(message).with_source(error), breaks, answered }
    }

    /// The server answered, and not as it should.
    pub(crate) fn answered(error: Error) -> Self {
        Self { error, breaks: false, answered: true }
    }

    /// Nothing was sent: there is no way to.
    pub(crate) fn unusable(error: Error) -> Self {
        Self { error, breaks: true, answered: false }
    }

    pub(crate) fn timed_out(message: String) -> Self {
        // What comes late would be read by nobody, but a connection may be half open: a new one tells.
        Self { error: Error::unavailable(message), breaks: true, answered: false }
    }
}

/// What it was and how to mend it, whether a new connection is needed, whether the server could decide if asked again.
fn explain(error: &RedisError) -> (&'static str, bool, bool) {
    if let Some(message) = lacks_permission(error) {
        return (message, false, false);
    }
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

/// What the user of the connection (ACL) must be granted, if that is the cause: NOPERM, or an error from within the script.
fn lacks_permission(error: &RedisError) -> Option<&'static str> {
    // A client tells of SELECT when it connects, and then by no code of the server's.
    if error.to_string().contains("refused to switch database") {
        return Some(if error.detail().is_some_and(|detail| detail.contains("permission")) {
            "Redis did not select the database of the address: its user (ACL) may not run SELECT; grant SELECT, or use \
             database 0"
        } else {
            "Redis did not select the database of the address: there is none of this number; raise `databases` in the \
             server's configuration, or use another number"
        });
    }
    let detail = error.detail().unwrap_or_default();
    // Redis 6 and 7.0, then later ones and Valkey.
    let in_script = ["The user executing the script can't", "ACL failure in script"];
    let is_refused = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || in_script.iter().any(|words| detail.contains(words));
    is_refused.then(|| {
        if detail.contains("access") && detail.contains("key") {
            "Redis refused a key: its user (ACL) may not use it; grant all keys that begin with the limiter's prefix, as in \
             `~ratelimit:*`"
        } else {
            "Redis refused a command: its user (ACL) may not run it; grant EVAL, EVALSHA, SCRIPT LOAD, TIME, GET, MGET, \
             EXISTS, SET, PSETEX, DEL, GETRANGE, SETRANGE and PEXPIRE, in a cluster CLUSTER SLOTS and ASKING, too, with \
             Sentinel ROLE"
        }
    })
}
