//! The common and the combined log format of web servers, also with the virtual host in front (`vhost_combined`).

use super::address;
use super::fields::Fields;

/// The columns of an access log, besides the time.
pub(super) const COLUMNS: [&str; 4] = ["address", "user", "method", "path"];

/// The parts of a line such as `192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 2326`, or the same
/// behind `www.example.com:443 `.
struct Parts<'a> {
    address: &'a str,
    user: &'a str,
    time: &'a str,
    method: &'a str,
    path: &'a str,
}

/// Returns `None` if the line has no such form.
fn parts(line: &str) -> Option<Parts<'_>> {
    let (mut address, mut rest) = line.split_once(' ')?;
    let second = rest.split_once(' ').filter(|(second, _)| address::parse(second).is_some());
    if let Some((second, behind)) = second.filter(|_| address::parse(address).is_none()) {
        (address, rest) = (second, behind);
    }
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
            if name == COLUMNS[0] && address::parse(text).is_none() {
                return Err(format!("{text:?} is no address"));
            }
            fields.set(index, text);
        }
    }
    Ok(())
}
