use std::borrow::Cow;

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

/// What an error means for the calls behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The connection must be replaced.
    Connection,
    /// The server makes no decisions now.
    Server,
    /// A proxy has lost the server. The call may have run.
    Proxy,
    /// The server works. The call may have run in part.
    Call,
}

impl Failure {
    /// Classifies the error of "the call", or of "connecting".
    pub(crate) fn of(what: &str, error: RedisError, address: &str) -> Self {
        let (meaning, cause) = classify(&error);
        // An error without a code is not from the server.
        let is_rejected = error.code().is_some() && matches!(meaning, Meaning::Connection | Meaning::Server);
        Self {
            error: Error::unavailable(format!("{what} to Redis ({address}) failed: {cause}")).with_source(error),
            reconnect: meaning == Meaning::Connection,
            server_responded: meaning == Meaning::Call,
            is_rejected,
        }
    }

    /// The server responded with an unexpected reply.
    pub(crate) fn server_responded(error: Error) -> Self {
        Self { error, reconnect: false, server_responded: true, is_rejected: false }
    }

    /// No connection can be opened from here. Or no reply came in time: the connection may be half open, so the next call
    /// needs a new one.
    pub(crate) fn unusable(error: Error) -> Self {
        Self { error, reconnect: true, server_responded: false, is_rejected: false }
    }
}

/// The error of a call outside of a tokio runtime, or in one without a timer.
pub(crate) fn no_runtime() -> Error {
    Error::config(
        "the call to Redis was not sent: there is no tokio runtime with a timer; build the runtime with `enable_all`, \
         and call the limiter from within it",
    )
}

/// The error of a call in a runtime that drops the tasks which it spawns.
pub(crate) fn runtime_ends() -> Error {
    Error::unavailable(
        "the call to Redis was not sent: the runtime is shutting down; end all requests before their tokio runtime",
    )
}

/// Returns what the error means, its cause, and what to do.
fn classify(error: &RedisError) -> (Meaning, Cow<'static, str>) {
    let (meaning, cause) = if let Some(cause) = missing_permission(error) {
        (Meaning::Call, cause)
    } else if error.kind() == ErrorKind::AuthenticationFailed {
        (Meaning::Connection, WRONG_CREDENTIALS)
    } else if error.kind() == ErrorKind::InvalidClientConfig && error.to_string().contains(PROVIDER_FAILED) {
        (Meaning::Connection, "the credentials provider failed; see the source of this error")
    } else if let Some((code, detail)) =
        raised_in_script(error).or_else(|| Some((error.code()?, error.detail().unwrap_or_default())))
    {
        classify_code(code, detail)
    } else {
        return (Meaning::Connection, lost_connection(error));
    };
    (meaning, cause.into())
}

/// Returns the code and the text of an error that a command within the script raised: Redis 6 puts both into its text.
fn raised_in_script(error: &RedisError) -> Option<(&str, &str)> {
    error.detail()?.rsplit_once(": -")?.1.split_once(' ')
}

fn classify_code(code: &str, detail: &str) -> (Meaning, &'static str) {
    let detail = detail.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| detail.contains(words));
    match code {
        "READONLY" => (Meaning::Connection, "this server is a read-only replica; connect to its master"),
        "MASTERDOWN" => (Meaning::Connection, "this server is a replica without its master; connect to a master"),
        "LOADING" => (Meaning::Server, "the server is loading its data; retry later"),
        "CLUSTERDOWN" => (Meaning::Server, "the cluster is down; check its nodes"),
        "CROSSSLOT" => (
            Meaning::Call,
            "this server is in cluster mode, and the keys of a call are in different cluster slots; connect with \
             `RedisServer::cluster`",
        ),
        "MOVED" | "ASK" | "TRYAGAIN" => (
            Meaning::Server,
            "this server is a cluster node that does not hold the key; connect with `RedisServer::cluster`",
        ),
        "OOM" => (
            Meaning::Server,
            "the server is out of memory (`maxmemory`); raise `maxmemory` or set an evicting `maxmemory-policy`",
        ),
        "BUSY" => (Meaning::Server, "Redis is busy running another script (BUSY); end it with SCRIPT KILL"),
        "NOREPLICAS" => {
            (Meaning::Server, "too few replicas are reachable (`min-replicas-to-write`); check the replicas")
        }
        "MISCONF" => (Meaning::Server, "the server cannot save its data and rejects writes (MISCONF); check its disk"),
        "NOAUTH" => (Meaning::Connection, NO_PASSWORD),
        // A server that requires a password rejects a long command before it reads the name.
        "ERR" if has(&["unauthenticated"]) => (Meaning::Connection, NO_PASSWORD),
        "WRONGPASS" => (Meaning::Connection, WRONG_CREDENTIALS),
        "ERR" if has(&["max number of clients"]) => {
            (Meaning::Connection, "the server has as many clients as `maxclients` allows; raise it, or end others")
        }
        "ERR" if has(&["unknown command"]) && has(&["cl.throttle"]) => {
            (Meaning::Call, "this Redis has no CL.THROTTLE; load the module redis-cell, or use Dragonfly")
        }
        "WRONGTYPE" => (Meaning::Call, "a key of the limiter holds another type; choose another prefix"),
        "ERR" if has(&["upstream", "connection refused", "connection timed out", "server closed", "no route"]) => {
            (Meaning::Proxy, "a proxy cannot reach the server; see the source of this error")
        }
        "UNKILLABLE" | "NOPROTO" | "ERR" => {
            (Meaning::Call, "the server rejected the limiter's command; see the source of this error")
        }
        _ if code.eq_ignore_ascii_case("upstream") || detail.contains("upstream") => {
            (Meaning::Proxy, "a proxy cannot reach the server; see the source of this error")
        }
        _ => (Meaning::Call, "the server returned an error; see the source of this error"),
    }
}

/// Returns why there is no connection, or none any more.
fn lost_connection(error: &RedisError) -> Cow<'static, str> {
    let text = error.to_string();
    if text.contains("InvalidContentType") || text.contains("corrupt message") {
        return "the server does not speak TLS on this port; use its TLS port, or redis://".into();
    }
    if text.contains("is being shutdown") {
        return "the runtime is shutting down; end all requests before their tokio runtime".into();
    }
    if error.is_connection_refusal() {
        return "the connection was refused; check that the server listens on this address".into();
    }
    if error.is_connection_dropped() {
        return "the server, or a proxy before it, closed the connection; check `maxclients`, whether the port requires TLS \
                (rediss://), and the server's log"
            .into();
    }
    format!("{text}; check that the server is reachable").into()
}

const NO_PASSWORD: &str = "the server requires a password; add it to the address";

const WRONG_CREDENTIALS: &str =
    "the server refused the user's name or password; correct them in the address or in the credentials provider";

/// Returns the permission that the connection's user (ACL) lacks, if that is the cause.
///
/// The cause is either the error NOPERM, or an error that a command within the script raised.
fn missing_permission(error: &RedisError) -> Option<&'static str> {
    // The redis crate sends SELECT while it connects, and reports its failure without the server's error code.
    if error.to_string().contains("refused to switch database") {
        return Some(if error.detail().is_some_and(|detail| detail.contains("permission")) {
            "the user (ACL) may not run SELECT; grant SELECT, or use database 0"
        } else {
            "the database of the address does not exist; raise `databases` in the server's \
             configuration, or use another number"
        });
    }
    let detail = error.detail().unwrap_or_default();
    // Redis 6 and 7.0 send the first text, later versions and Valkey the second.
    let in_script = ["The user executing the script can't", "ACL failure in script"];
    let is_denied = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || in_script.iter().any(|words| detail.contains(words));
    is_denied.then(|| {
        if detail.contains("access") && detail.contains("key") {
            "the user (ACL) may not access a key; grant all keys that begin with the \
             limiter's prefix, as in `~ratelimit:*`"
        } else {
            "the user (ACL) may not run a command; grant EVAL, EVALSHA, TIME, \
             GET, MGET, EXISTS, SET, PSETEX, PEXPIRE, DEL, LRANGE, LINDEX, LSET, LTRIM and RPUSH, in a cluster \
             also CLUSTER SLOTS and ASKING, with Sentinel also ROLE; for `RedisCell` CL.THROTTLE and DEL"
        }
    })
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::Failure;

    #[test]
    fn error_of_a_proxy_does_not_show_that_nothing_ran() {
        for (reply, is_rejected) in [
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", true),
            ("-READONLY You can't write against a read only replica.\r\n", true),
            ("-ERR upstream failure\r\n", false),
            ("-ERR Server closed the connection\r\n", false),
            ("-WRONGTYPE Operation against a key\r\n", false),
        ] {
            let error =
                redis::parse_redis_value(reply.as_bytes()).and_then(Value::extract_error).expect_err("an error");
            assert_eq!(Failure::of("the call", error, "a server").is_rejected, is_rejected, "{reply}");
        }
    }
}
