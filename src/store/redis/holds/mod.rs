//! Held costs: what this process holds on keys in Redis, and how it settles, renews and ends that.
//!
//! # Sessions
//!
//! All holds of one limiter on one key belong to a *session*. `holds.lua` documents what the server stores for each. A
//! session counts what its guards have settled since it began, in two sums that only grow: the released (held) costs
//! and the charged (actual) costs. An update carries both sums. The server compares them with the sums that it has
//! applied, and applies the difference. So updates may be lost, repeated or reordered, and each settlement takes effect
//! once. With increments instead of sums, a lost reply would leave the process with two bad choices: to send again and
//! charge twice, or to lose the settlement.
//!
//! The pending settlements of a session travel as one update, however many guards have settled.
//!
//! # The start of a session
//!
//! Only the call that creates a session sends its id as new; no other caller knows the session before the server has
//! granted its first hold. A later hold names an id that the server must know. If the server does not know it (the
//! session has expired there, or a fail-over has lost it), the server grants nothing, and the caller retries once in a
//! new session. Without this rule a hold could recreate an expired session with sums of zero, and the next update would
//! apply old settlements again.
//!
//! # Lost replies
//!
//! If the reply to a hold is lost, the process does not know what the server holds for the session. The call may also
//! arrive later, on a connection that was given up. So the session accepts no more holds until its next update has renamed
//! it on the server, and released there what exceeds the guards. Late calls name the earlier id, and change nothing. Further
//! holds join another session meanwhile. So a process has few entries on a key, however many replies are lost.
//!
//! # Expiry
//!
//! The process renews each session three times per expiry: the one that expires first comes first, and the renewals of many
//! sessions are spread over the interval. If the process cannot, the server charges what the session still
//! holds, as of the expiry. From then on the session is over, and only a surcharge (actual cost above the held one) is
//! charged, without the session.

mod pending_hold;
mod registry;
mod schedule;
mod session;
mod state;
mod update;

pub(crate) use self::pending_hold::{Grant, GrantedHold, PendingHold};
pub(crate) use self::registry::{HoldRegistry, HoldTransport, NewSessions};
pub(crate) use self::session::Session;
pub(crate) use self::update::SessionUpdate;
