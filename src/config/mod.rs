//! Limits from configuration: TOML, JSON, whatever serde reads.
//!
//! A [`Policy`] says a limit's name, algorithm, quota and what it counts by. [`KeyParts`] says what can be counted by, and makes
//! limits of policies. [`Memory::replace`](crate::Memory::replace) puts changed ones in place while requests are decided.
//!
//! ```
//! use tower_ratelimit::config::{KeyParts, Policy};
//! use tower_ratelimit::{AcquireOptions, Memory};
//!
//! struct Caller {
//!     user: u64,
//!     organisation: String,
//! }
//!
//! let parts = KeyParts::new()
//!     .add("user", |caller: &Caller| caller.user)
//!     .add("organisation", |caller: &Caller| caller.organisation.clone());
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
//! assert!(limiter.decide(&caller, AcquireOptions::default()).is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod key_parts;

pub use self::key_parts::KeyParts;
use crate::algorithm::{FixedWindow, Gcra, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket};
use crate::error::Error;
use crate::quota::Quota;
use serde::{Deserialize, Serialize};

/// A limit as configuration says it.
///
/// ```toml
/// name = "api"
/// algorithm = "gcra"        # or token-bucket, leaky-bucket, leaky-queue, fixed-window, sliding-window, sliding-log
/// quota = "100/min"
/// burst = 20                # gcra, token-bucket, leaky-bucket: else the quota's limit
/// max_waiting = 5           # leaky-queue: else the quota's limit
/// aligned_to_clock = true   # fixed-window: else a window starts at the first hit
/// blocks = 10               # sliding-window: else ten
/// weighted = true           # sliding-window: else strict
/// by = "user"               # what it counts by: one of the application's parts
/// shadow = false            # true to decide and tell, and never refuse
/// ```
///
/// A setting that is not the algorithm's is an error, as is one that the algorithm can't hold: it names the setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicyFields", into = "PolicyFields")]
pub struct Policy {
    raw: PolicyFields,
    algorithm: BuiltAlgorithm,
}

/// The names of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AlgorithmName {
    /// [`Gcra`]
    Gcra,
    /// [`TokenBucket`]
    TokenBucket,
    /// [`LeakyBucket`]
    LeakyBucket,
    /// [`LeakyQueue`]
    LeakyQueue,
    /// [`FixedWindow`]
    FixedWindow,
    /// [`SlidingWindow`]
    SlidingWindow,
    /// [`SlidingLog`]
    SlidingLog,
}

impl Policy {
    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.raw.name
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> AlgorithmName {
        self.raw.algorithm
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.raw.quota
    }

    /// What it counts by.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.raw.by
    }

    /// Whether it never refuses.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.raw.shadow
    }

    pub(super) fn built(&self) -> BuiltAlgorithm {
        self.algorithm
    }
}

/// A policy's algorithm with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltAlgorithm {
    Gcra(Gcra),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    LeakyQueue(LeakyQueue),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// The settings as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFields {
    name: String,
    algorithm: AlgorithmName,
    quota: Quota,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_waiting: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aligned_to_clock: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blocks: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weighted: Option<bool>,
    by: String,
    #[serde(default, skip_serializing_if = "is_false")]
    shadow: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

impl TryFrom<PolicyFields> for Policy {
    type Error = Error;

    fn try_from(raw: PolicyFields) -> Result<Self, Error> {
        if raw.name.is_empty() {
            return Err(Error::config("name: it is empty; give the limit one that clients may see"));
        }
        raw.reject_inapplicable()?;
        let algorithm = raw.build()?;
        Ok(Self { raw, algorithm })
    }
}

impl From<Policy> for PolicyFields {
    fn from(policy: Policy) -> Self {
        policy.raw
    }
}

impl PolicyFields {
    fn build(&self) -> Result<BuiltAlgorithm, Error> {
        let quota = self.quota;
        Ok(match self.algorithm {
            AlgorithmName::Gcra => {
                let gcra = with_field("quota", Gcra::try_new(quota))?;
                BuiltAlgorithm::Gcra(with_field("burst", self.burst.map_or(Ok(gcra), |burst| gcra.try_burst(burst)))?)
            }
            AlgorithmName::TokenBucket => {
                let bucket = with_field("quota", TokenBucket::try_new(quota))?;
                BuiltAlgorithm::TokenBucket(with_field(
                    "burst",
                    self.burst.map_or(Ok(bucket), |burst| bucket.try_burst(burst)),
                )?)
            }
            AlgorithmName::LeakyBucket => {
                let bucket = with_field("quota", LeakyBucket::try_new(quota))?;
                BuiltAlgorithm::LeakyBucket(with_field(
                    "burst",
                    self.burst.map_or(Ok(bucket), |burst| bucket.try_burst(burst)),
                )?)
            }
            AlgorithmName::LeakyQueue => {
                let queue = with_field("quota", LeakyQueue::try_new(quota))?;
                let queue = self.max_waiting.map_or(Ok(queue), |waiting| queue.try_max_waiting(waiting));
                BuiltAlgorithm::LeakyQueue(with_field("max_waiting", queue)?)
            }
            AlgorithmName::FixedWindow => {
                let window = FixedWindow::new(quota);
                let aligned = self.aligned_to_clock == Some(true);
                BuiltAlgorithm::FixedWindow(if aligned { window.aligned_to_clock() } else { window })
            }
            AlgorithmName::SlidingWindow => {
                let window = SlidingWindow::new(quota);
                let window = with_field("blocks", self.blocks.map_or(Ok(window), |blocks| window.try_blocks(blocks)))?;
                let weighted = self.weighted == Some(true);
                let window = if weighted { window.try_weighted() } else { Ok(window) };
                BuiltAlgorithm::SlidingWindow(with_field("weighted", window)?)
            }
            AlgorithmName::SlidingLog => BuiltAlgorithm::SlidingLog(with_field("quota", SlidingLog::try_new(quota))?),
        })
    }

    fn reject_inapplicable(&self) -> Result<(), Error> {
        use AlgorithmName::{FixedWindow, Gcra, LeakyBucket, LeakyQueue, SlidingWindow, TokenBucket};

        let settings: [(&str, bool, &[AlgorithmName], &str); 5] = [
            ("burst", self.burst.is_some(), &[Gcra, TokenBucket, LeakyBucket], "gcra, token-bucket and leaky-bucket"),
            ("max_waiting", self.max_waiting.is_some(), &[LeakyQueue], "leaky-queue"),
            ("aligned_to_clock", self.aligned_to_clock.is_some(), &[FixedWindow], "fixed-window"),
            ("blocks", self.blocks.is_some(), &[SlidingWindow], "sliding-window"),
            ("weighted", self.weighted.is_some(), &[SlidingWindow], "sliding-window"),
        ];
        for (field, is_set, owners, names) in settings {
            if is_set && !owners.contains(&self.algorithm) {
                return Err(Error::config(format!("{field}: it is a setting of {names} only")));
            }
        }
        Ok(())
    }
}

fn with_field<T>(field: &str, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| Error::config(format!("{field}: {error}")).with_source(error))
}
