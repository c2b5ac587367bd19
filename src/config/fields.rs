//! The fields of a policy, and what is wrong with them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error as _};

use super::calendar::{Anchor, ConfiguredQuota};
use super::names::{Names, When};
use super::{AlgorithmName, BuiltAlgorithm, Policy};
use crate::algorithm::{FixedWindow, Gcra, InFlight, LeakyQueue, SlidingLog, SlidingWindow};
use crate::decision::WarnAt;
use crate::error::Error;
use crate::quota::{Quota, read_period};

/// Defines the fields once: the struct, the names, and how a field is read.
///
/// Not a derived `Deserialize`: it reads all fields before one of them can be checked, and the error of a format then
/// points at the whole policy instead of the invalid field.
macro_rules! policy_fields {
    ($($field:ident: $value:ty,)+) => {
        /// The fields of a policy in configuration. A field that is not set is `None`.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub(crate) struct PolicyFields {
            $(#[serde(skip_serializing_if = "Option::is_none")] pub(crate) $field: Option<$value>,)+
        }

        impl PolicyFields {
            pub(super) const NAMES: &[&str] = &[$(stringify!($field)),+];

            /// Reads the value of the field with this name.
            pub(super) fn read<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
                match name {
                    $(stringify!($field) if self.$field.is_some() => Err(D::Error::duplicate_field(stringify!($field))),
                    stringify!($field) => {
                        self.$field = Some(read_value(name, value)?);
                        Ok(())
                    })+
                    _ => Err(D::Error::unknown_field(name, Self::NAMES)),
                }
            }
        }
    };
}

policy_fields! {
    name: String,
    algorithm: AlgorithmName,
    quota: ConfiguredQuota,
    max: u64,
    max_duration: String,
    burst: u64,
    max_waiting: u64,
    aligned_to_clock: bool,
    window: String,
    anchor: Anchor,
    zone: String,
    blocks: u64,
    weighted: bool,
    by: Names,
    when: When,
    fixed_cost: u64,
    unit: String,
    shadow: bool,
    keep_free: BTreeMap<String, u64>,
    escalate: Quota,
    block_for: Vec<String>,
    forget_after: String,
    warn_at: WarnAt,
    guarantee: u64,
}

/// Reads a value. An error begins with the name of the field.
fn read_value<'de, T: Deserialize<'de>, D: Deserializer<'de>>(name: &str, value: D) -> Result<T, D::Error> {
    // Some formats end a message with a new line, and would add another one.
    T::deserialize(value).map_err(|error| D::Error::custom(format_args!("{name}: {}", error.to_string().trim_end())))
}

impl TryFrom<PolicyFields> for Policy {
    type Error = Error;

    fn try_from(fields: PolicyFields) -> Result<Self, Error> {
        let algorithm = fields.check()?;
        Ok(Self { fields, algorithm })
    }
}

impl From<Policy> for PolicyFields {
    fn from(policy: Policy) -> Self {
        policy.fields
    }
}

impl PolicyFields {
    /// Checks all fields together.
    pub(super) fn check(&self) -> Result<BuiltAlgorithm, Error> {
        self.check_values()?;
        self.reject_inapplicable()?;
        self.build_escalation()?;
        self.build()
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.shadow == Some(true)
    }

    /// Checks what does not depend on the algorithm.
    pub(super) fn check_values(&self) -> Result<(), Error> {
        let (unit, has_guarantee) = (self.unit.as_deref(), self.guarantee.is_some());
        let problems = [
            (self.name.as_deref() == Some(""), "name: it is empty; give the limit a name that clients may see"),
            (
                self.by.as_ref().is_some_and(|names| names.as_slice().is_empty()),
                "by: the list is empty; name what the limit counts by",
            ),
            (unit == Some(""), "unit: it is empty; name what the limit counts, as in \"input\""),
            (
                unit.is_some() && self.fixed_cost.is_some(),
                "unit: a limit with `fixed_cost` has no unit; remove one of the two",
            ),
            (
                self.warn_at.is_some_and(|mark| !mark.is_valid()),
                "warn_at: it is not above 0 and at most 1; set a part of the limit, such as 0.8",
            ),
            (self.guarantee == Some(0), "guarantee: it is 0; set the number of sub-keys that have a share"),
            (has_guarantee && self.is_shadow(), "guarantee: a shadow guarantees nothing; remove one of the two fields"),
            (
                has_guarantee && self.keep_free.is_some(),
                "guarantee: a share keeps no units free itself; set `keep_free` at the common limit",
            ),
        ];
        let problem = problems.into_iter().find(|(is_found, _)| *is_found);
        problem.map_or(Ok(()), |(_, problem)| Err(Error::config(problem)))
    }

    fn algorithm(&self) -> Result<AlgorithmName, Error> {
        self.algorithm.ok_or_else(|| Error::config("algorithm: it is missing; set it, as in \"gcra\""))
    }

    pub(super) fn build(&self) -> Result<BuiltAlgorithm, Error> {
        let missing = || Error::config("quota: it is missing; set it, as in \"100/min\"");
        let quota = || self.quota.ok_or_else(missing).and_then(ConfiguredQuota::fixed);
        Ok(match self.algorithm()? {
            AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket => {
                let gcra = with_field("quota", Gcra::try_new(quota()?))?;
                BuiltAlgorithm::Gcra(with_field("burst", self.burst.map_or(Ok(gcra), |burst| gcra.try_burst(burst)))?)
            }
            AlgorithmName::LeakyQueue => {
                let queue = with_field("quota", LeakyQueue::try_new(quota()?))?;
                let queue = self.max_waiting.map_or(Ok(queue), |waiting| queue.try_max_waiting(waiting));
                BuiltAlgorithm::LeakyQueue(with_field("max_waiting", queue)?)
            }
            AlgorithmName::FixedWindow => {
                if let Some(window) = self.build_calendar()? {
                    return Ok(BuiltAlgorithm::FixedWindow(window));
                }
                let window = FixedWindow::new(quota()?);
                let aligned = self.aligned_to_clock == Some(true);
                BuiltAlgorithm::FixedWindow(if aligned { window.aligned_to_clock() } else { window })
            }
            AlgorithmName::SlidingWindow => {
                let window = SlidingWindow::new(quota()?);
                let window = with_field("blocks", self.blocks.map_or(Ok(window), |blocks| window.try_blocks(blocks)))?;
                let weighted = self.weighted == Some(true);
                let window = if weighted { window.try_weighted() } else { Ok(window) };
                BuiltAlgorithm::SlidingWindow(with_field("weighted", window)?)
            }
            AlgorithmName::SlidingLog => {
                BuiltAlgorithm::SlidingLog(with_field("quota", SlidingLog::try_new(quota()?))?)
            }
            AlgorithmName::InFlight => BuiltAlgorithm::InFlight(self.build_in_flight()?),
        })
    }

    fn build_in_flight(&self) -> Result<InFlight, Error> {
        let max = self.max.ok_or_else(|| Error::config("max: it is missing; set the maximum of requests at once"))?;
        let in_flight = with_field("max", InFlight::try_new(max))?;
        let Some(text) = &self.max_duration else { return Ok(in_flight) };
        with_field("max_duration", in_flight.try_max_duration(read_time("max_duration", text)?))
    }

    pub(super) fn reject_inapplicable(&self) -> Result<(), Error> {
        use AlgorithmName::{
            FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket,
        };

        let Some(algorithm) = self.algorithm else { return Ok(()) };
        if algorithm == InFlight && self.quota.is_some() {
            return Err(Error::config("quota: it does not apply to in-flight; set `max` instead"));
        }
        if algorithm == LeakyQueue && self.keep_free.is_some() {
            return Err(Error::config(
                "keep_free: it does not apply to leaky-queue; remove it or change the algorithm",
            ));
        }
        let fields: [(&str, bool, &[AlgorithmName], &str); 11] = [
            ("max", self.max.is_some(), &[InFlight], "in-flight"),
            ("max_duration", self.max_duration.is_some(), &[InFlight], "in-flight"),
            ("burst", self.burst.is_some(), &[Gcra, TokenBucket, LeakyBucket], "gcra, token-bucket and leaky-bucket"),
            ("max_waiting", self.max_waiting.is_some(), &[LeakyQueue], "leaky-queue"),
            ("aligned_to_clock", self.aligned_to_clock.is_some(), &[FixedWindow], "fixed-window"),
            ("window", self.window.is_some(), &[FixedWindow], "fixed-window"),
            ("anchor", self.anchor.is_some(), &[FixedWindow], "fixed-window"),
            ("zone", self.zone.is_some(), &[FixedWindow], "fixed-window"),
            ("blocks", self.blocks.is_some(), &[SlidingWindow], "sliding-window"),
            ("weighted", self.weighted.is_some(), &[SlidingWindow], "sliding-window"),
            (
                "guarantee",
                self.guarantee.is_some(),
                &[Gcra, TokenBucket, LeakyBucket, SlidingWindow, SlidingLog, InFlight],
                "gcra, token-bucket, leaky-bucket, sliding-window, sliding-log and in-flight",
            ),
        ];
        for (field, is_set, owners, names) in fields {
            if is_set && !owners.contains(&algorithm) {
                return Err(Error::config(format!(
                    "{field}: it applies to {names} only; remove it or change the algorithm"
                )));
            }
        }
        Ok(())
    }
}

/// Prefixes an error with the name of a field.
pub(super) fn with_field<T, E>(field: &str, result: Result<T, E>) -> Result<T, Error>
where
    E: std::error::Error + Send + Sync + 'static,
{
    result.map_err(|error| Error::config(format!("{field}: {error}")).with_source(error))
}

/// Reads a duration.
pub(super) fn read_time(field: &str, text: &str) -> Result<Duration, Error> {
    let micros =
        read_period(text).map_err(|error| Error::config(format!("{field}: {error}; write a time such as \"1h\"")))?;
    Ok(Duration::from_micros(micros))
}
