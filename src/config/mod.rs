//! Limits from configuration: TOML, JSON, and other formats that serde reads.
//!
//! A [`Policy`] is the configuration of one limit: name, algorithm, quota and sub-key. [`KeyParts`] defines the
//! sub-keys and conditions by name, and builds limits from policies, for memory and for Redis. [`Memory::replace`](crate::Memory::replace)
//! and `Redis::replace` replace the limits at run time. Each key keeps its usage.
//!
#![cfg_attr(not(doctest), doc = include_str!("policies.md"))]
//!
//! One configuration builds the limiter in Redis (feature `redis`) and its fallback in memory:
//! `Redis::new(server, "api", key_parts.redis_limits(&policies)?)`.

mod calendar;
mod divided;
mod escalation;
mod fields;
mod key_parts;
mod names;
mod read;

pub(crate) use self::fields::PolicyFields;
pub use self::key_parts::KeyParts;
pub(crate) use self::key_parts::{BuildLimit, Conditions, SubKeyFn, check_name, field_error, list_of};
pub(crate) use self::names::{Names, Values, When};
use crate::algorithm::{Algorithm as _, FixedWindow, Gcra, InFlight, LeakyQueue, SlidingLog, SlidingWindow};
use crate::calendar::Calendar;
use crate::decision::WarnAt;
use crate::quota::Quota;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;

/// The configuration of one limit.
///
/// ```toml
/// name = "api"
/// algorithm = "gcra"        # or token-bucket, leaky-bucket, leaky-queue, fixed-window, sliding-window, sliding-log,
///                           # in-flight
/// quota = "100/min"         # not for in-flight
/// burst = 20                # gcra, token-bucket, leaky-bucket; default: the quota's limit
/// max_waiting = 5           # leaky-queue; default: the quota's limit
/// aligned_to_clock = true   # fixed-window; default: a window starts at the first hit
/// window = "calendar"       # fixed-window: days, weeks, months or years of a calendar, as in quota = "10000/month"
/// anchor = 15               # calendar: the first day of the month, or of the week as in "sunday"; default: 1, or "monday"
/// zone = "+02:00"           # calendar: the offset from UTC, or with the feature `time-zones` a name such as "Europe/Berlin"
/// blocks = 10               # sliding-window; default: the largest divisor of the period up to 10
/// weighted = true           # sliding-window; default: strict
/// max = 2                   # in-flight: the maximum of requests at once
/// max_duration = "1h"       # in-flight: after this time a request does not count any more; default: no such time
/// by = "user"               # the sub-key: a name that the application added to `KeyParts`; in `routes` also a list
/// when = "write"            # the condition: a name that the application added to `KeyParts`; in `routes` parts of the
///                           # request; default: always
/// fixed_cost = 1            # charge this for every request; default: the cost of the request
/// unit = "input"            # charge the cost of the request in this unit; not beside fixed_cost
/// shadow = false            # true: decide and count, and never deny
/// keep_free = { bulk = 24 } # units that requests must leave to others, by the name of a condition; not for leaky-queue
/// escalate = "20/min"       # more denials block the key; not for shadows, shares, limits beside them, and `keep_free`
/// block_for = ["1m", "1h"]   # how long, each time; default: ["1m", "10m", "1h"]
/// forget_after = "1d"        # the time after which blocks are forgotten; default: "1d"
/// guarantee = 8             # guarantee a share to each of so many sub-keys; not for leaky-queue and fixed-window
/// warn_at = 0.8             # signal the part of the limit at which a key is near the limit; default: no signal
/// ```
///
/// A field that does not apply to the algorithm is an error, as is a value that the algorithm rejects. The error
/// names the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicyFields", into = "PolicyFields")]
pub struct Policy {
    fields: PolicyFields,
    algorithm: BuiltAlgorithm,
}

/// The name of an algorithm in configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AlgorithmName {
    /// [`Gcra`]
    Gcra,
    /// [`TokenBucket`](crate::TokenBucket)
    TokenBucket,
    /// [`LeakyBucket`](crate::LeakyBucket)
    LeakyBucket,
    /// [`LeakyQueue`]
    LeakyQueue,
    /// [`FixedWindow`]
    FixedWindow,
    /// [`SlidingWindow`]
    SlidingWindow,
    /// [`SlidingLog`]
    SlidingLog,
    /// [`InFlight`]
    InFlight,
}

impl Policy {
    /// Returns the limit's name.
    pub fn name(&self) -> &str {
        self.fields.name.as_deref().unwrap_or_default()
    }

    /// Returns the algorithm's name.
    pub fn algorithm(&self) -> AlgorithmName {
        self.fields.algorithm.unwrap_or(AlgorithmName::Gcra)
    }

    /// Returns the quota, which every algorithm but `in-flight` has. A calendar's quota has the longest window's days.
    pub fn quota(&self) -> Option<Quota> {
        match self.algorithm {
            BuiltAlgorithm::FixedWindow(window) => Some(window.quota()),
            _ => self.fields.quota.and_then(|quota| quota.fixed().ok()),
        }
    }

    /// Returns the calendar of the windows, if there is one: `fixed-window`.
    pub fn calendar(&self) -> Option<Calendar> {
        match self.algorithm {
            BuiltAlgorithm::FixedWindow(window) => window.get_calendar(),
            _ => None,
        }
    }

    /// Returns the maximum of requests at once: `in-flight`.
    pub fn max(&self) -> Option<u64> {
        self.fields.max
    }

    /// Returns the time after which a request does not count any more, if it is set: `in-flight`.
    pub fn max_duration(&self) -> Option<Duration> {
        match self.algorithm {
            BuiltAlgorithm::InFlight(in_flight) => in_flight.max_hold_duration(),
            _ => None,
        }
    }

    /// Returns the burst, if it is set: `gcra`, `token-bucket` and `leaky-bucket`.
    pub fn burst(&self) -> Option<u64> {
        self.fields.burst
    }

    /// Returns how many requests may wait, if it is set: `leaky-queue`.
    pub fn max_waiting(&self) -> Option<u64> {
        self.fields.max_waiting
    }

    /// Returns whether windows are aligned to the clock: `fixed-window`.
    pub fn is_aligned_to_clock(&self) -> bool {
        self.fields.aligned_to_clock == Some(true)
    }

    /// Returns the number of blocks, if it is set: `sliding-window`.
    pub fn blocks(&self) -> Option<u64> {
        self.fields.blocks
    }

    /// Returns whether the window is weighted: `sliding-window`.
    pub fn is_weighted(&self) -> bool {
        self.fields.weighted == Some(true)
    }

    /// Returns the name of the sub-key. The names of a list are joined by `+`.
    pub fn by(&self) -> Cow<'_, str> {
        match &self.fields.by {
            Some(Names::One(name)) => Cow::Borrowed(name),
            names => names.iter().map(ToString::to_string).collect(),
        }
    }

    /// Returns the name of the [condition](crate::Limit::only_if), if the limit has one. The parts of a request are written
    /// as in `method=POST|PUT,route!=/login`.
    pub fn when(&self) -> Option<Cow<'_, str>> {
        self.fields.when.as_ref().map(|when| match when {
            When::Condition(name) => Cow::Borrowed(name.as_str()),
            When::Parts(_) => Cow::Owned(when.to_string()),
        })
    }

    /// Returns the [fixed cost](crate::Limit::fixed_cost), if it is set.
    pub fn fixed_cost(&self) -> Option<u64> {
        self.fields.fixed_cost
    }

    /// Returns the [unit](crate::Limit::cost_of), if it is set.
    pub fn unit(&self) -> Option<&str> {
        self.fields.unit.as_deref()
    }

    /// Returns the units that the limit [keeps free](crate::Limit::keep_free_by) from requests that satisfy a condition, by
    /// the names of the conditions. If several conditions hold, the largest number counts.
    pub fn keep_free(&self) -> impl Iterator<Item = (&str, u64)> {
        self.fields.keep_free.iter().flatten().map(|(name, units)| (name.as_str(), *units))
    }

    /// Returns the mark of the [near-limit signal](crate::Limit::warn_at), if it is set.
    pub fn warn_at(&self) -> Option<f64> {
        self.fields.warn_at.map(WarnAt::part)
    }

    /// Returns the number of sub-keys with a [guaranteed share](crate::Limit::guarantee), if the limit is one.
    pub fn guarantee(&self) -> Option<u64> {
        self.fields.guarantee
    }

    /// Returns whether the limit is a [shadow](crate::Limit::shadow).
    pub fn is_shadow(&self) -> bool {
        self.fields.is_shadow()
    }

    pub(crate) fn fields(&self) -> &PolicyFields {
        &self.fields
    }

    pub(super) fn built(&self) -> BuiltAlgorithm {
        self.algorithm
    }
}

/// A configured algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltAlgorithm {
    Gcra(Gcra),
    LeakyQueue(LeakyQueue),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    InFlight(InFlight),
}
