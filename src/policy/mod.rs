//! Limits from configuration: TOML, JSON, whatever serde reads.
//!
//! A [`Policy`] says a limit's name, algorithm, quota and what it counts by. [`Parts`] says what can be counted by, and makes
//! limits of policies. [`Memory::replace`](crate::Memory::replace) puts changed ones in place while requests are decided.
//!
//! ```
//! use tower_ratelimit::policy::{Parts, Policy};
//! use tower_ratelimit::{Ask, Memory};
//!
//! struct Caller {
//!     user: u64,
//!     organisation: String,
//! }
//!
//! let parts = Parts::new()
//!     .part("user", |caller: &Caller| caller.user)
//!     .part("organisation", |caller: &Caller| caller.organisation.clone());
//!
//! let policies: Vec<Policy> = serde_json::from_str(
//!     r#"[
//!         { "name": "smooth", "algorithm": "gcra", "quota": "10/s", "burst": 20, "by": "user" },
//!         { "name": "hourly", "algorithm": "fixed-window", "quota": "1000/h", "by": "organisation" }
//!     ]"#,
//! )?;
//! let limiter = Memory::new(parts.limits(&policies)?);
//!
//! let caller = Caller { user: 7, organisation: "acme".to_owned() };
//! assert!(limiter.decide(&caller, Ask::default()).is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parts;
mod seam;

pub use self::parts::Parts;
pub use self::seam::{AlgorithmName, Policy};
