//! The common and the combined log format of web servers.

use super::fields::Fields;

/// The columns of an access log, besides the time.
pub(super) const COLUMNS: [&str; 4] = ["address", "user", "method", "path"];

/// The parts of a line such as `192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 2326`.
struct Parts<'a> {
    address: &'a str,
    user: &'a str,
    time: &'a str,
    method: &'a str,
    path: &'a str,
}

/// Returns `None` if the line has no such form.
fn parts(line: &str) -> Option<Parts<'_>> {
    let (address, rest) = line.split_once(' ')?;
    let (_identity, rest) = rest.split_once(' ')?;
    let (user, rest) = rest.split_once(" [")?;
    let (time, rest) = rest.split_once(']')?;
    // The path ends at its query or at the version; a malformed request line has no space.
    let request = rest.trim_start().strip_prefix('"').unwrap_or("");
    let (method, target) = request.split_once(' ').unwrap_or(("", ""));
    let path = target.split([' ', '"', '?']).next().unwrap_or("");
    Some(Parts { address, user, time, method, path })
}

pub(super) fn is_access_log(line: &str) -> bool {
    parts(line).is_some_and(|parts| super::time::parse_access_time(parts.time).is_some())
}

/// Reads the fields of one line. A `-` is an absent value.
pub(super) fn read(line: &str, time: usize, fields: &mut Fields) -> Result<(), String> {
    let parts = parts(line).ok_or("it is not in the common or combined log format")?;
    fields.set(time, parts.time);
    for (name, text) in COLUMNS.into_iter().zip([parts.address, parts.user, parts.method, parts.path]) {
        if let Some(index) = fields.index_of(name).filter(|_| !matches!(text, "-" | "")) {
            fields.set(index, text);
        }
    }
    Ok(())
}
