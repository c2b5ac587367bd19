//! The parts of the programs `simulate` and `playground`, which help to choose limits before a deployment.
//!
//! The library exists for these programs and for their tests. Its interface is not stable.
//!
//! A [`Simulation`] decides [`Traffic`] with the limits of [policies](tower_ratelimit::config), on a
//! [`ManualClock`](tower_ratelimit::ManualClock), with the [`Memory`](tower_ratelimit::Memory) limiter that a server
//! uses. So the decisions are those of a server that receives the same requests at the same times.
//!
//! ```
//! use std::time::Duration;
//! use tower_ratelimit::Timestamp;
//! use tower_ratelimit::config::Policy;
//! use tower_ratelimit_simulate::{Simulation, Traffic};
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
//! whose values are its keys. The name `all` needs no column: such a policy counts all requests under one key. A condition
//! names a column whose value is `true` where the condition holds, and a unit names the column of the costs in this unit.
//!
//! A [`LogParser`] reads arrivals from lines of access logs, JSON lines and CSV. A [`Filter`] selects the lines.
//!
//! # Suggestions
//!
//! [`suggest`] searches for the smallest limit, burst or queue that denies at most a number of keys, or of requests.

mod altered;
mod bounds;
mod bursts;
pub mod chart;
pub mod code;
mod log;
mod report;
mod series;
mod share;
mod simulation;
mod suggestion;
mod traffic;
mod units;

pub use self::bounds::max_admitted;
pub use self::log::{Filter, LogFormat, LogOptions, LogParser, ReadLine};
pub use self::report::{Burst, KeyReport, Report};
pub use self::series::{Bin, Interval, Series};
pub use self::share::Share;
pub use self::simulation::Simulation;
pub use self::suggestion::{MaxDenied, Suggestion, suggest};
pub use self::traffic::{Arrival, Traffic};

/// An error of a program: its text is printed.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;
