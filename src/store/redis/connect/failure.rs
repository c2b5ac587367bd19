use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::credentials::PROVIDER_FAILED;
use crate::error::Error;

/// The error of a call, and its consequences for the connection and the circuit breaker.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection must be replaced.
    pub(crate) reconnect: bool,
    /// The server processed the call, so the failure does not count for the circuit breaker.
    pub(crate) server_responded: bool,
    /// The server has rejected the call, and run nothing of it.
    pub(crate) is_rejected: bool,
}

impl Failure {
    /// Classifies an error of the redis crate or of the server.
    pub(crate) fn from_redis(error: RedisError) -> Self {
        let (message, reconnect, server_responded) = classify(&error);
        // An error without a code is not from the server. Errors that count as a response may be from the middle of a
        // script.
        let is_rejected = error.code().is_some() && !server_responded;
        Self { error: Error::unavailable(message).with_source(error), reconnect, server_responded, is_rejected }
    }

    /// The server responded with an unexpected reply.
    pub(crate) fn server_responded(error: Error) -> Self {
        Self { error, reconnect: false, server_responded: true, is_rejected: false }
    }

    /// No connection can be opened from here.
    pub(crate) fn unusable(error: Error) -> Self {
        Self { error, reconnect: true, server_responded: false, is_rejected: false }
    }

    /// No reply in time. The connection may be half open, so the next call needs a new one.
    pub(crate) fn timed_out(message: String) -> Self {
        Self { error: Error::unavailable(message), reconnect: true, server_responded: false, is_rejected: false }
    }
}

/// The error of a call outside of a tokio runtime, or in one without a timer.
pub(crate) fn no_runtime() -> Error {
    Error::config(
        "the call to Redis was not sent: there is no tokio runtime with a timer; build the runtime with `enable_all`, \
         and call the limiter from within it",
    )
}

/// Returns the message, whether to reconnect, and whether the server responded.
fn classify(error: &RedisError) -> (&'static str, bool, bool) {
    if let Some(message) = missing_permission(error) {
        return (message, false, false);
    }
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly) if !mistake!(ReplicaIsKept) => {
            ("the call to Redis failed: this server is a read-only replica; connect to its master", true, false)
        }
        ErrorKind::Server(ServerErrorKind::MasterDown) => {
            ("the call to Redis failed: this server is a replica without its master; connect to a master", true, false)
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => {
            ("the call to Redis failed: the server is loading its data; retry later", false, false)
        }
        ErrorKind::Server(ServerErrorKind::ClusterDown) => {
            ("the call to Redis failed: the cluster is down; check its nodes", false, false)
        }
        ErrorKind::Server(ServerErrorKind::CrossSlot) => (
            "the call to Redis failed: the keys of these limits are in different cluster slots; give them one hash tag \
             with `slot_by`",
            false,
            false,
        ),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain) => (
            "the call to Redis failed: this server is a cluster node that does not hold the key; connect with \
             `RedisServer::cluster`",
            false,
            false,
        ),
        ErrorKind::AuthenticationFailed => (WRONG_CREDENTIALS, true, false),
        ErrorKind::InvalidClientConfig if error.to_string().contains(PROVIDER_FAILED) => {
            ("connecting to Redis failed: the credentials provider failed; see the source of this error", true, false)
        }
        _ => match error.code() {
            Some("OOM") => (
                "the call to Redis failed: the server is out of memory (`maxmemory`); raise `maxmemory` or set an \
                 evicting `maxmemory-policy`",
                false,
                false,
            ),
            Some("BUSY") => (
                "the call to Redis failed: Redis is busy running another script (BUSY); end it with SCRIPT KILL",
                false,
                false,
            ),
            Some("NOREPLICAS") => (
                "the call to Redis failed: too few replicas are reachable (`min-replicas-to-write`); check the \
                 replicas",
                false,
                false,
            ),
            Some("MISCONF") => (
                "the call to Redis failed: the server cannot save its data and rejects writes (MISCONF); check its \
                 disk",
                false,
                false,
            ),
            Some("NOAUTH") => {
                ("the call to Redis failed: the server requires a password; add it to the address", true, false)
            }
            Some("WRONGPASS") => (WRONG_CREDENTIALS, true, false),
            Some("WRONGTYPE") => (
                "the call to Redis failed: a key of the limiter holds another type; choose another prefix",
                false,
                true,
            ),
            Some("UNKILLABLE" | "NOPROTO" | "ERR") => (
                "the call to Redis failed: the server rejected the limiter's script; see the source of this error",
                false,
                true,
            ),
            Some(_) => {
                ("the call to Redis failed: the server returned an error; see the source of this error", false, true)
            }
            None => ("the connection to Redis failed; check that the server is reachable", true, false),
        },
    }
}

const WRONG_CREDENTIALS: &str = "connecting to Redis failed: the server refused the user's name or password; correct them in the address or in \
     the credentials provider";

/// Returns the permission that the connection's user (ACL) lacks, if that is the cause.
///
/// The cause is either the error NOPERM, or an error that a command within the script raised.
fn missing_permission(error: &RedisError) -> Option<&'static str> {
    // The redis crate sends SELECT while it connects, and reports its failure without the server's error code.
    if error.to_string().contains("refused to switch database") {
        return Some(if error.detail().is_some_and(|detail| detail.contains("permission")) {
            "connecting to Redis failed: the user (ACL) may not run SELECT; grant SELECT, or use database 0"
        } else {
            "connecting to Redis failed: the database of the address does not exist; raise `databases` in the server's \
             configuration, or use another number"
        });
    }
    let detail = error.detail().unwrap_or_default();
    // The first text is that of Redis 6 and 7.0, the second that of later versions and of Valkey.
    let in_script = ["The user executing the script can't", "ACL failure in script"];
    let is_denied = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || in_script.iter().any(|words| detail.contains(words));
    is_denied.then(|| {
        if detail.contains("access") && detail.contains("key") {
            "the call to Redis failed: the user (ACL) may not access a key; grant all keys that begin with the \
             limiter's prefix, as in `~ratelimit:*`"
        } else {
            "the call to Redis failed: the user (ACL) may not run a command; grant EVAL, EVALSHA, SCRIPT LOAD, TIME, \
             GET, MGET, EXISTS, SET, PSETEX, PEXPIRE, DEL, LRANGE, LINDEX, LSET, LTRIM and RPUSH, in a cluster \
             also CLUSTER SLOTS and ASKING, with Sentinel also ROLE"
        }
    })
}
