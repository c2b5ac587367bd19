//! Simulation of limits on recorded traffic, to choose limits before a deployment.
//!
//! A [`Simulation`] decides [`Traffic`] with the limits of [policies](crate::config), on a
//! [`ManualClock`](crate::ManualClock), with the [`Memory`](crate::Memory) limiter that a server uses. So the decisions
//! are those of a server that receives the same requests at the same times. The module does no I/O.
//!
//! ```
//! use std::time::Duration;
//! use tower_ratelimit::Timestamp;
//! use tower_ratelimit::config::Policy;
//! use tower_ratelimit::simulate::{Simulation, Traffic};
//!
//! let policy: Policy = serde_json::from_str(
//!     r#"{ "name": "api", "algorithm": "gcra", "quota": "1/s", "burst": 5, "by": "user" }"#,
//! )?;
//!
//! // Each second three requests of one user, for ten seconds.
//! let mut traffic = Traffic::for_policies([&policy]);
//! for second in 0..10 {
//!     for _ in 0..3 {
//!         traffic.push(Timestamp::from_micros(second * 1_000_000), &["alice"], 1);
//!     }
//! }
//!
//! let report = Simulation::alone(&policy, &traffic)?.run();
//! assert_eq!((report.admitted, report.denied), (14, 16));
//! assert_eq!(report.longest_denial, Duration::from_secs(1));
//! // The largest cost that one key was admitted in ten seconds, and the maximum that the algorithm ever admits.
//! assert_eq!((report.bursts[1].admitted, report.bursts[1].bound), (14, Some(14)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Traffic
//!
//! An arrival has a time, a cost, and a value in each column of the traffic. The `by` of a policy names the column
//! whose values are its keys. The name `all` needs no column: such a policy counts all requests under one key.
//!
//! A [`LogParser`] reads arrivals from lines of access logs, JSON lines and CSV. The example `simulate` is a command
//! that reads such files, prints a report for each policy, and suggests limits.
//!
//! # Suggestions
//!
//! [`suggest`] searches for the smallest limit, burst or queue that denies at most a given share of the requests.

mod altered;
mod bounds;
mod bursts;
mod log;
mod report;
mod simulation;
mod suggestion;
mod traffic;

pub use self::bounds::max_admitted;
pub use self::log::{LogFormat, LogParser};
pub use self::report::{Burst, KeyReport, Report};
pub use self::simulation::Simulation;
pub use self::suggestion::{Suggestion, suggest};
pub use self::traffic::{Arrival, Traffic};
