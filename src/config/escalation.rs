//! Escalations in configuration.

use std::time::Duration;

use super::calendar::ConfiguredQuota;
use super::fields::{PolicyFields, read_time, with_field};
use super::{AlgorithmName, KeyParts, Policy};
use crate::clock::MAX_PERIOD_MICROS;
use crate::error::Error;
use crate::limiter::Escalation;
use crate::store::DynLimit;
#[cfg(feature = "redis")]
use crate::store::RedisLimit;

impl Policy {
    /// Returns the escalation of the limit's denials, for [`Escalating`](crate::limiter::Escalating), if the limit has one.
    ///
    /// The limits that count come from [`KeyParts::escalation_limits`] or `KeyParts::redis_escalation_limits`.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("escalation.md"))]
    pub fn escalation(&self) -> Option<Escalation> {
        self.fields.build_escalation().ok().flatten()
    }

    /// Checks that no block of this limit denies requests within a guaranteed share.
    pub(super) fn check_block(&self, policies: &[Self]) -> Result<(), String> {
        let cost = |policy: &Self| (policy.fixed_cost(), policy.unit().map(str::to_owned));
        let is_beside = |other: &&Self| other.guarantee().is_some() && cost(other) == cost(self);
        match policies.iter().find(is_beside) {
            Some(share) if self.fields.escalate.is_some() => Err(format!(
                "a block would deny requests within the share {:?}; set the field at a limit with another `unit` or \
                 `fixed_cost`",
                share.name()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the policies of the limits that count the denials and blocks of the escalation.
    fn counts(&self) -> Result<Vec<Self>, Error> {
        let windows = self.escalation().map(|escalation| escalation.windows());
        let policy = |(name, unit, window): (&str, &str, crate::FixedWindow)| {
            Self::try_from(PolicyFields {
                name: Some(name.to_owned()),
                algorithm: Some(AlgorithmName::FixedWindow),
                quota: Some(ConfiguredQuota::Fixed(window.quota())),
                by: self.fields.by.clone(),
                unit: Some(unit.to_owned()),
                ..PolicyFields::default()
            })
        };
        windows.into_iter().flatten().map(policy).collect()
    }
}

impl<Key: ?Sized + 'static> KeyParts<Key> {
    /// Builds the limits that count the denials and blocks of a policy's [escalation](Policy::escalation), for
    /// [`Memory`](crate::Memory). There are none without an escalation.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy counts by an unknown sub-key.
    pub fn escalation_limits(&self, policy: &Policy) -> Result<Vec<DynLimit<Key>>, Error> {
        self.limits(&policy.counts()?)
    }

    /// Builds the limits that count the denials and blocks of a policy's [escalation](Policy::escalation), for
    /// [`Redis`](crate::Redis). There are none without an escalation.
    ///
    /// # Errors
    ///
    /// As [`escalation_limits`](Self::escalation_limits).
    #[cfg(feature = "redis")]
    pub fn redis_escalation_limits(&self, policy: &Policy) -> Result<Vec<RedisLimit<Key>>, Error> {
        self.redis_limits(&policy.counts()?)
    }
}

impl PolicyFields {
    /// Returns the escalation, if there is one.
    pub(super) fn build_escalation(&self) -> Result<Option<Escalation>, Error> {
        let Some(denials) = self.escalate else {
            let times = [("block_for", self.block_for.is_some()), ("forget_after", self.forget_after.is_some())];
            return match times.into_iter().find(|(_, is_set)| *is_set) {
                Some((field, _)) => Err(Error::config(format!(
                    "{field}: it has no effect without `escalate`; set `escalate`, as in \"20/min\", or remove it"
                ))),
                None => Ok(None),
            };
        };
        if self.is_shadow() {
            return Err(Error::config("escalate: a shadow denies no request; remove one of the two fields"));
        }
        if self.guarantee.is_some() {
            return Err(Error::config(
                "escalate: a guaranteed share denies no request; set the field at a limit that is not beside the share, such \
                 as one with another `unit` or `fixed_cost`",
            ));
        }
        if self.keep_free.is_some() {
            return Err(Error::config(
                "escalate: a block would deny requests for which units are kept free; remove one of the two fields",
            ));
        }
        let mut escalation = Escalation::new(self.name.clone().unwrap_or_default(), denials);
        if let Some(texts) = &self.block_for {
            let durations = texts.iter().map(|text| read_time("block_for", text)).collect::<Result<Vec<_>, _>>()?;
            // Whether the blocks are forgotten in time is a matter of the next field.
            let longest = Duration::from_micros(MAX_PERIOD_MICROS);
            let forgotten_late = escalation.try_forget_after(longest)?;
            escalation = with_field("block_for", forgotten_late.try_block_for(durations))?;
        }
        let forget_after = self.forget_after.as_ref().map(|text| read_time("forget_after", text)).transpose()?;
        let forget_after = forget_after.unwrap_or(Escalation::FORGET_AFTER);
        with_field("forget_after", escalation.try_forget_after(forget_after)).map(Some)
    }
}
