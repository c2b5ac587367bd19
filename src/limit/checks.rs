use std::collections::HashSet;

use super::LimitCost;
use crate::decision::{WarnAt, first_invalid_name_char};
use crate::error::Error;

/// What the checks of a limiter's limits need to know of one limit.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "properties that do not depend on each other")]
pub(crate) struct LimitFacts<'a> {
    pub(crate) name: &'a str,
    /// The limit may not apply to some keys.
    pub(crate) is_conditional: bool,
    /// The limit counts by the whole key.
    pub(crate) is_whole_key: bool,
    /// The limit keeps units free from some requests.
    pub(crate) keeps_free: bool,
    /// The algorithm is a queue, which delays requests.
    pub(crate) is_queue: bool,
    pub(crate) cost: LimitCost,
    /// The mark of the near-limit signal, if the limit has one.
    pub(crate) warn_at: Option<WarnAt>,
}

/// Checks the limits of a limiter together.
///
/// # Errors
///
/// Returns an error if
///
/// - there is no limit;
/// - a name is empty or has a character that header fields cannot carry, or two limits have one name;
/// - a unit is empty, or has no number;
/// - a limit applies only to some keys or keeps units free from some, and a limit counts by the whole key;
/// - a queue keeps units free;
/// - a mark is not above 0 and at most 1.
pub(crate) fn check_limits(limits: &[LimitFacts<'_>]) -> Result<(), Error> {
    check_names(limits)?;
    limits.iter().try_for_each(|limit| limit.cost.check(limit.name))?;
    check_sub_keys(limits)?;
    check_kept_free(limits)?;
    check_marks(limits)
}

fn check_names(limits: &[LimitFacts<'_>]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for &LimitFacts { name, .. } in limits {
        if name.is_empty() {
            return Err(Error::config("limit name: a limit has an empty name; give it a name that clients may see"));
        }
        if let Some(char) = first_invalid_name_char(name) {
            return Err(Error::config(format!(
                "limit name {name:?}: header fields cannot carry {char:?}; use printable ASCII other than '\"' and '\\'"
            )));
        }
        if !seen.insert(name) {
            return Err(Error::config(format!(
                "limit name: two limits are named {name:?}; give each its own name with `Limit::new`"
            )));
        }
    }
    if seen.is_empty() {
        return Err(Error::config("no limits: a limiter without limits would allow every request; add a limit"));
    }
    Ok(())
}

/// A condition reads the key, so the key contains what it depends on. A limit on the whole key would count the requests
/// that satisfy the condition apart from the others, and would so allow its quota twice. The same holds for units that are
/// kept free.
fn check_sub_keys(limits: &[LimitFacts<'_>]) -> Result<(), Error> {
    let conditional = limits.iter().find(|limit| limit.is_conditional || limit.keeps_free);
    let whole = limits.iter().find(|limit| limit.is_whole_key);
    match (conditional, whole) {
        (Some(conditional), Some(whole)) => Err(Error::config(format!(
            "limit {:?}: it counts by the whole key, which includes what decides whether the limit {:?} {}; call \
             `keyed_by` on each limit of the limiter",
            whole.name,
            conditional.name,
            if conditional.is_conditional { "applies" } else { "keeps units free" },
        ))),
        _ => Ok(()),
    }
}

/// Units are kept free from requests that start now. The starts of a queue are later ones.
fn check_kept_free(limits: &[LimitFacts<'_>]) -> Result<(), Error> {
    match limits.iter().find(|limit| limit.keeps_free && limit.is_queue) {
        Some(queue) => Err(Error::config(format!(
            "limit {:?}: a queue cannot keep units free, because its starts are one after the other; use `Gcra`",
            queue.name
        ))),
        None => Ok(()),
    }
}

fn check_marks(limits: &[LimitFacts<'_>]) -> Result<(), Error> {
    match limits.iter().find(|limit| limit.warn_at.is_some_and(|mark| !mark.is_valid())) {
        Some(limit) => Err(Error::config(format!(
            "limit {:?}: the mark `warn_at` is not above 0 and at most 1; pass a part of the limit, such as 0.8",
            limit.name
        ))),
        None => Ok(()),
    }
}
