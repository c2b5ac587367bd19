//! Calendar windows in configuration.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fields::{PolicyFields, with_field};
use crate::algorithm::FixedWindow;
use crate::calendar::{Calendar, Weekday};
use crate::error::Error;
use crate::quota::{Quota, QuotaError, read_text};

/// A limit per period, or per month or year of a calendar: `10000/month`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfiguredQuota {
    Fixed(Quota),
    Month(u64),
    Year(u64),
}

impl ConfiguredQuota {
    /// Returns the quota.
    pub(super) fn fixed(self) -> Result<Quota, Error> {
        match self {
            Self::Fixed(quota) => Ok(quota),
            Self::Month(_) | Self::Year(_) => with_field("quota", Err(QuotaError::CalendarUnit)),
        }
    }

    /// Returns the part of one of several processes. A calendar's windows keep their length.
    pub(super) fn divided_by(self, processes: u64, is_of_calendar: bool) -> Result<Self, Error> {
        let part = |limit: u64| match limit.checked_div(processes) {
            Some(0) | None if limit > 0 => Err(Error::config(format!(
                "quota: {limit} divided by {processes} processes leaves none for each; use fewer processes"
            ))),
            part => Ok(part.unwrap_or_default()),
        };
        Ok(match self {
            Self::Fixed(quota) if is_of_calendar => Self::Fixed(Quota::new(part(quota.limit())?, quota.period())),
            Self::Fixed(quota) => Self::Fixed(with_field("quota", quota.divided_by(processes))?),
            Self::Month(limit) => Self::Month(part(limit)?),
            Self::Year(limit) => Self::Year(part(limit)?),
        })
    }
}

impl FromStr for ConfiguredQuota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let limit = |limit: &str| format!("{limit}/s").parse().map(Quota::limit);
        match text.split_once('/').or_else(|| text.split_once(" per ")) {
            Some((count, unit)) if ["month", "months"].contains(&unit.trim()) => limit(count).map(Self::Month),
            Some((count, unit)) if ["year", "years"].contains(&unit.trim()) => limit(count).map(Self::Year),
            _ => text.parse().map(Self::Fixed),
        }
    }
}

impl fmt::Display for ConfiguredQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(quota) => quota.fmt(f),
            Self::Month(limit) => write!(f, "{limit}/month"),
            Self::Year(limit) => write!(f, "{limit}/year"),
        }
    }
}

impl Serialize for ConfiguredQuota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConfiguredQuota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read_text(deserializer)
    }
}

/// The first day of a calendar's windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a day of the month, or a weekday such as \"sunday\"")]
pub(crate) enum Anchor {
    Day(u64),
    Weekday(String),
}

impl PolicyFields {
    /// Whether the field `window`, if it is not read yet, can make the other fields of a calendar valid.
    pub(super) fn may_be_calendar(&self) -> bool {
        let is_of_calendar = matches!(self.quota, Some(ConfiguredQuota::Month(_) | ConfiguredQuota::Year(_)));
        self.window.is_none() && (is_of_calendar || self.anchor.is_some() || self.zone.is_some())
    }

    /// Returns the calendar's window, `None` if the policy has no calendar.
    pub(super) fn build_calendar(&self) -> Result<Option<FixedWindow>, Error> {
        match self.window.as_deref() {
            None => {
                for (field, is_set) in [("anchor", self.anchor.is_some()), ("zone", self.zone.is_some())] {
                    if is_set {
                        return Err(Error::config(format!(
                            "{field}: it applies to calendar windows only; set `window = \"calendar\"`, or remove it"
                        )));
                    }
                }
                return Ok(None);
            }
            Some("calendar") => {}
            Some(other) => {
                return Err(Error::config(format!("window: {other:?} is unknown; write \"calendar\", or remove it")));
            }
        }
        if self.aligned_to_clock.is_some() {
            return Err(Error::config("window: a calendar is aligned already; remove `aligned_to_clock`"));
        }
        let quota = self.quota.ok_or_else(|| Error::config("quota: it is missing; set it, as in \"100/month\""))?;
        let (limit, calendar) = match quota {
            ConfiguredQuota::Month(limit) => (limit, self.month()?),
            ConfiguredQuota::Year(limit) => (limit, self.without_anchor(Calendar::yearly())?),
            ConfiguredQuota::Fixed(quota) => match quota.period().as_micros() {
                86_400_000_000 => (quota.limit(), self.without_anchor(Calendar::daily())?),
                604_800_000_000 => (quota.limit(), Calendar::weekly_from(self.weekday()?)),
                _ => {
                    return Err(Error::config(format!(
                        "quota: {quota} is no limit of a calendar; write a limit per day, week, month or year, as in \
                         \"10000/month\""
                    )));
                }
            },
        };
        let calendar = self.zone.as_deref().map_or(Ok(calendar), |zone| with_field("zone", in_zone(calendar, zone)))?;
        with_field("quota", FixedWindow::try_calendar(limit, calendar)).map(Some)
    }

    fn month(&self) -> Result<Calendar, Error> {
        let day = match &self.anchor {
            None => 1,
            Some(Anchor::Day(day)) => u8::try_from(*day).unwrap_or(u8::MAX),
            Some(Anchor::Weekday(_)) => 0,
        };
        with_field("anchor", Calendar::try_monthly_on(day))
    }

    fn weekday(&self) -> Result<Weekday, Error> {
        let name = match &self.anchor {
            None => "monday",
            Some(Anchor::Weekday(name)) => name,
            Some(Anchor::Day(_)) => "",
        };
        Weekday::from_name(name).ok_or_else(|| {
            Error::config("anchor: it is not a weekday; write the weekday that begins the week, as in \"sunday\"")
        })
    }

    fn without_anchor(&self, calendar: Calendar) -> Result<Calendar, Error> {
        match self.anchor {
            None => Ok(calendar),
            Some(_) => Err(Error::config("anchor: it applies to weeks and months only; remove it")),
        }
    }
}

/// Sets the time zone: an offset such as `+02:00`, or the name of a zone.
fn in_zone(calendar: Calendar, zone: &str) -> Result<Calendar, Error> {
    if zone == "UTC" {
        return Ok(calendar);
    }
    let Some(offset) = zone.strip_prefix(['+', '-']) else { return calendar.zone_or_error(zone) };
    let is_number = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| if is_number(text) { text.parse::<i16>().ok() } else { None };
    let parts = offset.split_once(':').and_then(|(hours, minutes)| Some((number(hours)?, number(minutes)?)));
    let Some((hours, minutes)) = parts.filter(|(_, minutes)| *minutes < 60) else {
        return Err(Error::config(format!("{zone:?} is no offset from UTC; write one such as \"+02:00\"")));
    };
    let minutes = hours * 60 + minutes;
    calendar.try_utc_offset_minutes(if zone.starts_with('-') { -minutes } else { minutes })
}
