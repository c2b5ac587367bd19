//! Queues of waiting requests: uncharged, in order of arrival, found by a keyed hash.
//!
//! A request that cannot start now joins the queue of the limit that denied it. A queue has waiting requests in order,
//! starts in order of time, and asks under way. A task drives each queue, so a future that is not polled delays no other
//! request. A queue ends when nothing waits, no ask is under way, and its last start has passed.
//!
//! # The states of a request
//!
//! ```text
//!            the queue asks                 the start is due
//!   open ────────────────────────► asked ────────────────────► started
//!    ▲ ▲                             │ │
//!    │ └── the ask is denied ────────┘ └── deadline, or the client leaves ──► ended: the next open
//!    └──── another limit denies: open in that limit's queue                   request of the class is asked
//! ```
//!
//! An ask or a start belongs to a class of requests (key, costs, hold), not to one request. The first requests of the
//! class in the order of service are its asked ones, as many as it has asks under way and starts.
//!
//! # What a decision says
//!
//! A decision is asked for at a time `t`, and its answer comes later by the same link. From the latest decision of its limit,
//! the queue knows when the limiter can admit more (`forecast.rs`). All times are those at which to send an ask.
//!
//! | The decision | Free now | The next unit | The units after that |
//! |---|---|---|---|
//! | allowed | what remains | at `t` + the time until the next unit; unknown for requests in flight | evenly until the key is idle |
//! | allowed after a delay | nothing | at `t` + the delay + one interval | one interval apart |
//! | denied for `retry_after` | what remains, less than the cost | at `t` + `retry_after` + the delay that the ask accepted | evenly until the key is idle, or one interval apart if the limiter schedules |
//! | an estimate: costs are held | what remains, less than the cost | unknown | unknown |
//!
//! # The rules
//!
//! Each rule has a law of `tests/http/middleware`. `scripts/waiting --laws` compiles the crate without each rule whose name
//! is in code type, in turn: its law fails then. The last column is a row of `scripts/waiting` without the rule:
//! goodput, or the starts of each process or tenant.
//!
//! | Rule | What the queue does | Law | Without it |
//! |---|---|---|---|
//! | `horizon` (`asks.rs`) | If the limiter schedules starts, the queue asks 2 ms before them in memory, and 40 to 50 ms before them over a link. Buckets and `LeakyQueue` schedule, unless another limit of the request has units left. | `processes_with_unequal_links_share_a_bucket` | in memory 20 % of 5000 a second, 5 % of 20,000 |
//! | `random` (`pace.rs`) | The 10 ms between 40 and 50 are a random time, drawn for each ask. If the limiter schedules no starts, the queue asks over a link a random part of a 24th of the interval later. | the same, `queues_of_many_users_share_the_limit_of_their_organisation` | two processes with links of 0.2 and 25 ms: 0 and 240 starts; with a limit of each user: 1 and 148 |
//! | `one-ask` (`pace.rs`) | The number of asks under way doubles with an admission and falls to one with a denial. After a denial with an estimate, the queue asks again after a release, else after 100 ms, 200 ms, and so on up to 1 s, each up to a fifth less. It asks at least once a second. | `processes_ask_about_as_often_as_a_limit_admits`, `held_units_are_asked_for_seldom` | eight processes with links of 25 ms: 7.0 asks a start instead of 1.9; users that leave after 1 s, burst 1: goodput 97 to 73 % |
//! | releases (`limiter/capacity.rs`) | A release of units names its limit. The oldest request that the limit can deny is asked for, then the next one, until the limit denies. | `release_wakes_what_it_frees` | requests of other classes and shares start late, or all of them ask |
//! | `order` (`queues.rs`) | Before it asks for a request, the queue looks whether another queue of the limits on which it costs something has an earlier open request. Then the request moves there. | `tenants_with_many_workers_receive_equal_parts`, `nobody_starves` | three tenants, burst 1, 25 ms: 258, 234 and 470 starts |
//! | `leavers` (`state.rs`) | Among several keys, the queue passes over requests whose deadline, or the age at which others gave up, comes before their start. | `users_that_give_up_lose_no_starts` | users that leave after 1 s: 85 % with a link of 0.2 ms, 0 % with 25 ms |
//! | `position` (`state.rs`) | A request is refused on arrival if its forecast is after its deadline. With `newest_first` nobody is refused by position, but the oldest request gives its place in a full queue. | `request_that_cannot_start_in_time_is_refused_at_once` | requests wait in vain |
//! | `own-rate` (`forecast.rs`) | The forecast is at least three quarters of the cost ahead times the mean time for a unit in this queue, from the eighth start on: so a process that receives a part of a limit refuses by its part. For a request whose cost is settled later, and while the next unit is unknown, the forecast is the whole product. Without it, the head of a long queue is always near its deadline, and is asked for without a horizon. | `processes_with_unequal_links_share_a_bucket`, `process_that_receives_a_part_refuses_by_its_part` | three processes: 797, 108 and 94 starts |
//! | stalled drivers (`waiting.rs`) | Each waiting future has a timer. When the request is due, and the driver has missed its step by 100 ms, the future replaces the driver by one in its own runtime. | `requests_end_in_time_whatever_other_runtimes_do` | a blocked or parked runtime holds up the requests of the others |
//!
//! A start goes to the first request of its class whose deadline is not before the start. With `newest_first` the order of
//! service is the reverse order of arrival.
//!
//! A request does not join if its cost is zero or exceeds the limit: the limiter answers at once. A layer without `max_wait`
//! waits for `LeakyQueue` only. Its first request then comes with the start that the limiter has scheduled for it.
//!
//! # What an answer means
//!
//! | The answer | The queue |
//! |---|---|
//! | admitted, and another limit has the least remaining | asks again at once: how much more this limit admits is unknown |
//! | a denial of another limit | the request moves to that limit's queue, in its order of arrival |
//! | a denial of this limit, with an exact time | a new forecast; one ask under way until the next admission |
//! | a denial with an estimate: costs are held | the next ask after a release, or at once in a new queue, then after 100 ms, 200 ms, and so on up to 1 s, each up to a fifth less |
//! | a denial, and the request's earliest start is after its deadline, or its cost exceeds the limit | the request is rejected |
//! | a denial that was decided before a release in this process | the queue asks again at once, because the release has not asked yet |
//!
//! # A trace
//!
//! `Gcra`, 10 a second, burst 1, in memory; ten requests `a` to `j` of one key arrive at 0 ms, and wait for up to 800 ms.
//!
//! | Time | Event | Open | Asked | Starts |
//! |---|---|---|---|---|
//! | 0 | `a` is admitted at once; `b` is denied for 100 ms, and creates the queue: forecast 100, 200, .. | b | | |
//! | 0 | `c` to `i` join: forecast of `i` is 800; `j` is refused, since its forecast is 900 | b .. i | | |
//! | 98 | the horizon before 100: the queue asks for `b`, and accepts 2 ms: admitted; forecast 200, .. | c .. i | b | 100 |
//! | 99 | `b` leaves: its start belongs to `c` | d .. i | c | 100 |
//! | 100 | `c` starts | d .. i | | |
//! | 198, 200 | ask for `d`: admitted; forecast 300, ..; then `d` starts | e .. i | | |
//! | 250 | `g` leaves: nothing else changes | e f h i | | |
//! | 298, 300 | ask for `e`, which starts | f h i | | |
//! | 398 to 600 | the same for `f`, `h` and `i`; the queue ends with the start of `i` | | | |
//!
//! # Files
//!
//! | File | Content |
//! |---|---|
//! | `queues.rs` | the queues of a layer |
//! | `join.rs` | how a request joins a queue, and the bounds |
//! | `state.rs`, `asks.rs` | one queue: its starts, and its asks |
//! | `waiters.rs` | the waiting requests of one queue |
//! | `forecast.rs`, `pace.rs` | when the limiter can admit; how many asks are under way |
//! | `abandonment.rs` | the age at which waiting requests leave |
//! | `ids.rs`, `key_ask.rs` | the queues of a key; the key and the limiter of a request |
//! | `ticket.rs` | what a queue and a request's future share |
//! | `driver.rs` | the task that drives a queue |
//! | `waiting.rs` | the future of a waiting request, and the guard of a start |
//!
//! All state of a queue is under the mutex of its shard. A ticket has a mutex of its own, which is locked after the mutex of
//! a shard, never before.

mod abandonment;
mod asks;
mod driver;
mod forecast;
mod ids;
mod join;
mod key_ask;
#[cfg(all(test, loom))]
mod loom_tests;
mod pace;
mod queues;
mod state;
mod ticket;
mod waiters;
mod waiting;

pub(crate) use self::ids::{limits_of_guard, visit_queues};
pub(crate) use self::join::{Arrival, Asked, Bounds, Refused};
pub(crate) use self::key_ask::{KeyAsk, existing_queue};
pub(crate) use self::queues::Queues;
#[cfg(any(feature = "timer", test))]
pub(crate) use self::ticket::Ask;
pub(crate) use self::ticket::{Class, Start};
pub(crate) use self::waiting::{GrantedStart, Waiting};
