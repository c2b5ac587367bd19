use std::collections::HashSet;

use super::LimitCost;
use super::guarantee::{SharePart, Shares, check_shares};
use crate::algorithm::ShareCapacity;
use crate::decision::{Name, ShareRole, Unit, WarnAt, first_invalid_name_char};
use crate::error::Error;

/// The properties of a limit that depend on no key type: what the checks of a limiter's limits need.
#[derive(Clone)]
pub(crate) struct LimitFacts {
    pub(crate) name: Name,
    /// The sub-key's name in configuration.
    #[cfg(feature = "redis")]
    pub(crate) sub_key_name: Option<Name>,
    /// The limit may not apply to some keys.
    pub(crate) is_conditional: bool,
    /// The limit counts by the whole key.
    pub(crate) is_whole_key: bool,
    /// The limit keeps units free from some requests.
    pub(crate) keeps_free: bool,
    /// The algorithm is a queue, which delays requests.
    pub(crate) is_queue: bool,
    pub(crate) cost: LimitCost,
    pub(crate) is_shadow: bool,
    pub(crate) share: SharePart,
    /// What the limit's algorithm can guarantee, if it is the same for all keys.
    pub(crate) capacity: Option<ShareCapacity>,
    /// The mark of the near-limit signal, if the limit has one.
    pub(crate) warn_at: Option<WarnAt>,
}

impl LimitFacts {
    /// Checks the limit by itself.
    fn check(&self) -> Result<(), Error> {
        let problems = [
            (self.cost.unit() == Some(""), "its unit is empty; name what the limit counts"),
            (
                self.cost == LimitCost::OfUnit(Unit::TOO_MANY),
                "its unit is one of more than 254 in this process; use fewer names",
            ),
            // Units are kept free from requests that start now. The starts of a queue are later ones.
            (
                self.keeps_free && self.is_queue,
                "a queue cannot keep units free, because its starts are one after the other; use `Gcra`",
            ),
            (
                self.warn_at.is_some_and(|mark| !mark.is_valid()),
                "the mark `warn_at` is not above 0 and at most 1; pass a part of the limit, such as 0.8",
            ),
        ];
        match problems.into_iter().find(|(is_found, _)| *is_found) {
            Some((_, problem)) => Err(Error::config(format!("limit {:?}: {problem}", self.name.as_str()))),
            None => Ok(()),
        }
    }

    /// Calls `visit` with the limit's name, with whether it denies requests, and with the unit of its cost.
    pub(crate) fn describe(&self, visit: &mut dyn FnMut(&str, bool, Option<&'static str>)) {
        visit(self.name.as_str(), !self.is_shadow && self.share.role != ShareRole::Share, self.cost.unit());
    }
}

/// Checks the limits of a limiter together. Returns their guaranteed shares, if there are any.
///
/// # Errors
///
/// Returns an error if
///
/// - there is no limit;
/// - a name is empty or has a character that header fields cannot carry, or two limits have one name;
/// - a unit is empty, or has no number;
/// - a limit applies only to some keys or keeps units free from some, and a limit counts by the whole key; the
///   same beside a guaranteed share;
/// - a queue keeps units free;
/// - a mark is not above 0 and at most 1;
/// - the other limits cannot serve all guaranteed shares.
pub(crate) fn check_limits(limits: &[LimitFacts]) -> Result<Option<Shares>, Error> {
    check_names(limits)?;
    limits.iter().try_for_each(LimitFacts::check)?;
    check_sub_keys(limits)?;
    check_shares(limits)
}

fn check_names(limits: &[LimitFacts]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for name in limits.iter().map(|limit| limit.name.as_str()) {
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
fn check_sub_keys(limits: &[LimitFacts]) -> Result<(), Error> {
    let reads_key =
        |limit: &&LimitFacts| limit.is_conditional || limit.keeps_free || limit.share.role == ShareRole::Share;
    let conditional = limits.iter().find(reads_key);
    let whole = limits.iter().find(|limit| limit.is_whole_key);
    match (conditional, whole) {
        (Some(conditional), Some(whole)) => Err(Error::config(format!(
            "limit {:?}: it counts by the whole key, which includes what decides whether the limit {:?} {}; call \
             `keyed_by` on each limit of the limiter",
            whole.name.as_str(),
            conditional.name.as_str(),
            match conditional {
                LimitFacts { is_conditional: true, .. } => "applies",
                LimitFacts { keeps_free: true, .. } => "keeps units free",
                _ => "guarantees a share",
            },
        ))),
        _ => Ok(()),
    }
}
