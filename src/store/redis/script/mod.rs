//! The Lua script that decides inside Redis: its text, its input, its reply, and the replay of its transitions in Rust.
//!
//! One call runs a batch of operations, one after the other, atomically. `read.lua` documents the input, `driver.lua`
//! the reply, `fields.rs` numbers the fields of both, `holds.lua`, `reservations.lua` and `lease.lua` how held costs are stored.
//!
//! # Replay
//!
//! The script replies with the verdicts, and with the state that each key had *before* the batch (expired holds are
//! charged first). Rust replays the batch on those states with the same algorithms, and computes limit, remaining and
//! reset from them. So the script computes nothing that only headers need, and one state per key travels however many
//! operations the batch has. This is exact because the Rust and the Lua implementation of an algorithm make the same
//! transition, which the differential tests check. If the two differed, the verdicts would still be right, but the
//! numbers of later decisions of the batch would not.

mod encode;
mod fields;
mod limit_info;
mod replay;
mod reply;
mod source;
mod template;
mod verdict;

pub(crate) use self::encode::{NO_KEY, StepEncoder, push_f64, push_u16};
pub(crate) use self::fields::{Failure, LEASE_IDS, MIN_GRANT, Operation};
pub(crate) use self::limit_info::{
    EntryTarget, FixedAlgorithm, LimitInfo, LimitSet, OwnAlgorithm, limit_has_no_algorithm,
};
pub(crate) use self::replay::{DynLuaAlgorithm, catch_panic};
pub(crate) use self::reply::ReplyReader;
pub(crate) use self::template::{MAX_EXACT, OperationTemplate, to_f64};
pub(crate) use self::verdict::{Repeated, Replay, ScriptVerdict};
