//! Time zones: from instants to local dates and back. Instants are microseconds since the Unix epoch.

use std::fmt;

const DAY: i64 = 86_400_000_000;
const MINUTE: i64 = 60_000_000;

/// A time zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Zone {
    /// The minutes by which local time is ahead of UTC.
    Offset(i16),
    #[cfg(feature = "time-zones")]
    Named(super::named_zone::NamedZone),
}

impl Zone {
    /// The maximum offset: 23 hours and 59 minutes.
    pub(super) const MAX_OFFSET: i16 = 24 * 60 - 1;

    /// Returns numbers that no other zone has.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for scripts"))]
    pub(super) const fn id(self) -> [u64; 2] {
        match self {
            Self::Offset(minutes) => [0, minutes.unsigned_abs() as u64 * 2 + (minutes < 0) as u64],
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => [1, zone.number()],
        }
    }

    /// Returns the local date at an instant: days since the epoch.
    pub(super) fn date_at(self, at: i64) -> i64 {
        let offset = match self {
            Self::Offset(minutes) => i64::from(minutes) * MINUTE,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.offset_at(at),
        };
        (at + offset).div_euclid(DAY)
    }

    /// Returns the first instant at which the local date is `date` or later.
    pub(super) fn start_of(self, date: i64) -> i64 {
        match self {
            Self::Offset(minutes) => date * DAY - i64::from(minutes) * MINUTE,
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => zone.first_instant(date * DAY),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Offset(0) => f.write_str("UTC"),
            Self::Offset(minutes) => {
                let (sign, minutes) = (if minutes < 0 { '-' } else { '+' }, minutes.unsigned_abs());
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
            #[cfg(feature = "time-zones")]
            Self::Named(zone) => f.write_str(zone.name()),
        }
    }
}
