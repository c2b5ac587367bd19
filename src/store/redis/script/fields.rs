//! The numbers that Rust and the Lua files share: codes, and the fields of what is sent, replied and stored.
//!
//! This file is the only place that numbers them. The Lua files name a number as `ENTRY.held`, and [`resolve`] puts the
//! number in its place. `ENTRY.LENGTH` is the number of fields. Positions count from 1, as in Lua.

use std::collections::HashMap;

/// The lists of fields, with a slash between the names of one field. Rust sends and reads arrays in this order.
const LISTS: [(&str, &str); 10] = [
    // An update of a session. `released` and `charged` are the sums of the session. `ends` is 1 to end the session, and 2 to
    // rename it and release what it holds beyond `held`. `held` is the sum of the costs that the session holds: 0 to end it.
    ("UPDATE", "id released charged ends held"),
    // The results of an update. Of one that holds until the end of requests: by how much the held costs have shrunk, and
    // the costs for which there is no room.
    ("UPDATED", "released charged"),
    // The report of a lease. `spent` is the sum of the spent units, and `unconfirmed` the part of it that no reply has
    // confirmed. `expiry` is the expiry of the hold that the report is about, 0 for none.
    ("REPORT", "id sequence spent unconfirmed keep want expiry"),
    // The results of a report: the units that are held then, their expiry, the charged cost, all held costs of the key.
    ("GRANT", "held expiry charged total"),
    // What an operation that records an id sends behind the limits' numbers: the numbers of the id's two keys among the
    // keys of ids, for how long the id is remembered, the maximum number of ids, and the repeats that pass without a
    // charge: 0 for a hold.
    ("RESERVE", "record_key counts_key lifetime max_ids repeats"),
    // What a settlement by id sends behind the limits' costs.
    ("SETTLE", "record_key"),
    // The results of a settlement by id, for each limit.
    ("SETTLED", "released charged"),
    // The three figures of a limit whose state is too large to travel: the kernel's `view` defines them.
    ("VIEW", "first second third"),
    // An entry of a session, or of a lease.
    ("ENTRY", "id held released/spent charged/sequence expiry"),
    // The words between a state and the entries.
    ("HELD", "key_expiry block cost leased due latest span most duration yields_until count"),
];

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$code_doc:meta])* $code:ident = $lua:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u16)]
            pub(crate) enum $name {
                $($(#[$code_doc])* $code),*
            }

            impl $name {
                #[allow(dead_code, reason = "operations are only sent")]
                pub(crate) const ALL: &'static [Self] = &[$(Self::$code),*];
                const NAMES: &'static [&'static str] = &[$(stringify!($lua)),*];
            }
        )*
    };
}

codes! {
    /// The operation codes of the script.
    #[derive(Default)]
    Operation {
        #[default]
        Acquisition = acquire,
        Peek = peek,
        Hold = hold,
        Charge = charge,
        Set = set,
        Block = block,
        Reset = reset,
        Update = update,
        Lease = lease,
        /// A hold with an id.
        Reserve = reserve,
        /// The settlement of a hold by its id.
        Settle = settle,
        /// A decision that charges an id once.
        Once = once,
        /// A hold of a request that is charged once.
        OnceHold = once_hold,
        /// Records what a request was charged by its settlement.
        Record = record,
    }

    /// Why an operation has failed: in the place of each of its results.
    Failure {
        /// A key holds bytes that are not a state of its algorithm.
        InvalidState = invalid_state,
        /// The server does not know the session or the lease.
        Expired = expired,
        /// The key has the maximum number of sessions or leases.
        Full = full,
        /// The algorithm's Lua script has no function `charge`.
        Unsupported = unsupported,
        /// The decision was not made, because its reply would have come too late.
        Late = late,
        /// The id belongs to a hold with another cost. Or what a request was charged has changed.
        Conflict = conflict,
        /// The key has too many ids. The hold is denied.
        TooManyIds = too_many_ids,
        /// The key has no hold with the id.
        UnknownId = unknown_id,
        /// The hold with the id is settled or has expired.
        AlreadySettled = already_settled,
        /// The hold with the id is open, and no repeats are left. The time for which it is remembered is in place of the
        /// flags.
        Repeated = repeated,
    }
}

/// In the flags of a decision: no later start can be scheduled.
pub(crate) const CANNOT_SCHEDULE: u64 = 1;
/// In the flags: only the units of leases deny.
pub(crate) const DENIED_BY_LEASES: u64 = 2;
/// In the flags: the first of the bits for blocked keys, one for each limit that applies, then those for the blocks of
/// escalations.
pub(crate) const FIRST_BLOCKED: u64 = 4;
/// In the flags: the id is remembered, and nothing more is held or charged.
pub(crate) const REPEATED: u64 = 1 << 40;

/// The least id of a lease. Ids of sessions are smaller, and ids of groups of reservations are no whole numbers.
pub(crate) const LEASE_IDS: u64 = 1 << 52;
/// No lease gets fewer units: a smaller grant is not worth a call.
pub(crate) const MIN_GRANT: u64 = 2;
/// The maximum number of entries of a key: of sessions, and of leases.
pub(crate) const MAX_ENTRIES: u64 = 64;
/// The maximum number of groups of reservations of a key. The rounding of expiries in `reservations.lua` makes at most
/// nine for the shortest time until an expiry, and at most five more for each doubling up to 24 hours.
pub(crate) const MAX_GROUPS: u64 = 160;

const CONSTANTS: [(&str, u64); 8] = [
    ("FLAG.cannot_schedule", CANNOT_SCHEDULE),
    ("FLAG.denied_by_leases", DENIED_BY_LEASES),
    ("FLAG.first_blocked", FIRST_BLOCKED),
    ("FLAG.repeated", REPEATED),
    ("BOUND.lease_ids", LEASE_IDS),
    ("BOUND.min_grant", MIN_GRANT),
    ("BOUND.max_entries", MAX_ENTRIES),
    ("BOUND.max_groups", MAX_GROUPS),
];

impl Failure {
    /// The least number that is exact as a double. No result is as small.
    const FIRST: i64 = -(1 << 53);

    /// Returns the result of a failed operation.
    pub(crate) const fn result(self) -> i64 {
        Self::FIRST + self as i64
    }

    /// Returns the failure that a result stands for.
    pub(crate) fn of(result: i64) -> Option<Self> {
        let code = usize::try_from(result.checked_sub(Self::FIRST)?).ok()?;
        Self::ALL.get(code).copied()
    }
}

/// Replaces the names of fields and codes in the script by their numbers.
pub(crate) fn resolve(script: &str) -> String {
    let numbers = numbers();
    let is_end = |char: char| !is_name(char) && char != '.';
    let resolve = |word| {
        let (name, end) = str::split_at(word, word.trim_end_matches(is_end).len());
        [numbers.get(name).map_or(name, String::as_str), end]
    };
    script.split_inclusive(is_end).flat_map(resolve).collect()
}

fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// The number of each name in the Lua files.
fn numbers() -> HashMap<String, String> {
    let mut numbers: HashMap<_, _> =
        CONSTANTS.iter().map(|(name, number)| ((*name).to_owned(), number.to_string())).collect();
    for (list, fields) in LISTS {
        let fields: Vec<_> = fields.split(' ').collect();
        numbers.insert(format!("{list}.LENGTH"), fields.len().to_string());
        for (index, names) in fields.iter().enumerate() {
            numbers.extend(names.split('/').map(|name| (format!("{list}.{name}"), (index + 1).to_string())));
        }
    }
    let codes = Operation::NAMES.iter().enumerate();
    numbers.extend(codes.map(|(code, name)| (format!("OPERATION.{name}"), code.to_string())));
    let failures = Failure::NAMES.iter().zip(Failure::ALL);
    // A double also where numbers without a fraction are integers.
    numbers.extend(failures.map(|(name, failure)| (format!("FAILURE.{name}"), format!("({}.0)", failure.result()))));
    numbers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FILES: [(&str, &str); 9] = [
        ("prelude", include_str!("prelude.lua")),
        ("fast_reply", include_str!("fast_reply.lua")),
        ("fast_holds", include_str!("../../../algorithm/fast_holds.lua")),
        ("read", include_str!("read.lua")),
        ("holds", include_str!("holds.lua")),
        ("lease", include_str!("lease.lua")),
        ("reservations", include_str!("reservations.lua")),
        ("operations", include_str!("operations.lua")),
        ("driver", include_str!("driver.lua")),
    ];

    /// The code of all files, without comments, with the name of the file of each line.
    fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
        let code = |line: &'static str| line.split("--").next().unwrap_or_default();
        FILES.iter().flat_map(move |&(file, text)| text.lines().map(move |line| (file, code(line))))
    }

    /// The names `LIST.field` in the Lua files.
    fn named() -> BTreeSet<String> {
        let mut named = BTreeSet::new();
        for (_, line) in lines() {
            for (dot, _) in line.match_indices('.') {
                let list = line[..dot].rsplit(|char| !is_name(char)).next().unwrap_or_default();
                let field = line[dot + 1..].split(|char| !is_name(char)).next().unwrap_or_default();
                if list != "_G" && !list.is_empty() && list.chars().all(|char| char.is_ascii_uppercase() || char == '_')
                {
                    named.insert(format!("{list}.{field}"));
                }
            }
        }
        named
    }

    /// A name that the table lacks would be the field of a global variable: the script would fail when it runs.
    #[test]
    fn every_name_in_the_lua_files_is_in_the_table() {
        let (named, numbers) = (named(), numbers());
        assert!(named.len() > 60, "{named:?}");
        for name in &named {
            assert!(numbers.contains_key(name), "`{name}` is in a Lua file, and not in fields.rs");
        }
    }

    /// A field that one side does not know would shift the others.
    #[test]
    fn the_lua_files_name_every_field_of_the_table() {
        // Operations that have no branch of their own: a decision, its peek in a comparison of numbers, and the last.
        let implied = ["OPERATION.acquire", "SETTLE.record_key"];
        let named = named();
        for name in numbers().keys().filter(|name| !implied.contains(&name.as_str()) && !name.ends_with(".LENGTH")) {
            assert!(named.contains(name), "no Lua file names `{name}`");
        }
    }

    /// A position that stands as a number in a Lua file would not follow the table.
    #[test]
    fn the_lua_files_read_no_field_by_a_number() {
        for (file, line) in lines() {
            for variable in ["entry[", "entries[i][", "ids["] {
                let numbers = line
                    .match_indices(variable)
                    .filter(|(at, _)| line[at + variable.len()..].starts_with(|char: char| char.is_ascii_digit()));
                assert_eq!(numbers.count(), 0, "{file}.lua: {line}");
            }
        }
    }

    #[test]
    fn names_resolve_to_positions_from_one() {
        let script = "entry[ENTRY.held] = ids[UPDATE.LENGTH] .. x.y + FAILURE.expired -- OPERATION.settle, OTHER.held";
        let resolved = "entry[2] = ids[5] .. x.y + (-9007199254740991.0) -- 10, OTHER.held";
        assert_eq!(resolve(script), resolved);
        assert_eq!(resolve("ENTRY.spent"), resolve("ENTRY.released"));
        // `read.lua` reads the record of a settlement and of a hold in one place.
        assert_eq!(resolve("SETTLE.record_key"), resolve("RESERVE.record_key"));
    }

    #[test]
    fn failures_are_the_least_results() {
        for &failure in Failure::ALL {
            assert_eq!(Failure::of(failure.result()), Some(failure));
        }
        let last = Failure::Repeated.result();
        assert_eq!([i64::MIN, Failure::FIRST - 1, last + 1, -1, 0, i64::MAX].map(Failure::of), [None; 6]);
    }
}
