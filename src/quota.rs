//! Quotas: a limit per period.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::MAX_PERIOD_MICROS;
use crate::error::Error;

/// A limit per period: `Quota::per_second(10)` is ten per second.
///
/// A period is a whole number of microseconds, from one microsecond to 200 years. A limit of zero denies every request as
/// exceeding the limit, without `Retry-After`: a plan without uploads, for example.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Quota;
///
/// const LOGINS: Quota = Quota::new(5, Duration::from_secs(15 * 60));
/// assert_eq!(LOGINS.to_string(), "5 per 15min");
/// assert_eq!("5 per 15min".parse(), Ok::<_, tower_ratelimit::QuotaError>(LOGINS));
/// assert_eq!(Quota::per_minute(100).to_string(), "100/min");
/// ```
///
/// # Text form
///
/// `FromStr` accepts `COUNT/PERIOD` or `COUNT per PERIOD`: `100/min`, `10/s`, `5 per 10s`, `1000 per 7 days`. The count
/// may hold underscores (`10_000/h`). The period is an optional whole number and a unit: `us` (or `µs`), `ms`, `s`, `min` (or
/// `m`), `h`, `d`, or `w` for a week; English words are accepted too. `Display` writes a
/// form that parses as an equal quota.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    period_micros: NonZeroU64,
}

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

/// The largest limit, burst or cost: Redis counts in doubles, which are exact up to this number.
pub(crate) const MAX_LIMIT: u64 = 1 << 53;

impl Quota {
    /// Creates a quota of `limit` per second.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53. In a `const` the compiler reports it.
    #[track_caller]
    pub const fn per_second(limit: u64) -> Self {
        unwrap(Self::from_micros(limit, SECOND))
    }

    /// Creates a quota of `limit` per minute.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53. In a `const` the compiler reports it.
    #[track_caller]
    pub const fn per_minute(limit: u64) -> Self {
        unwrap(Self::from_micros(limit, MINUTE))
    }

    /// Creates a quota of `limit` per hour.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53. In a `const` the compiler reports it.
    #[track_caller]
    pub const fn per_hour(limit: u64) -> Self {
        unwrap(Self::from_micros(limit, HOUR))
    }

    /// Creates a quota of `limit` per 24 hours.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53. In a `const` the compiler reports it.
    #[track_caller]
    pub const fn per_day(limit: u64) -> Self {
        unwrap(Self::from_micros(limit, DAY))
    }

    /// Creates a quota of `limit` per `period`.
    ///
    /// A period is fixed: for a calendar month use [`FixedWindow::calendar`](crate::FixedWindow::calendar).
    ///
    /// # Panics
    ///
    /// Panics if `limit` is over 2^53, or the period zero, not a whole number of microseconds, or over 200
    /// years. In a `const` the compiler reports it.
    #[track_caller]
    pub const fn new(limit: u64, period: Duration) -> Self {
        unwrap(Self::try_new(limit, period))
    }

    /// Works as [`new`](Self::new), and returns an error instead of panicking: for limits that are known at run time.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` is over 2^53, or the period zero, not a whole number of microseconds, or
    /// over 200 years.
    pub const fn try_new(limit: u64, period: Duration) -> Result<Self, QuotaError> {
        if !period.subsec_nanos().is_multiple_of(1_000) {
            return Err(QuotaError::FractionalMicros);
        }
        if period.as_secs() > MAX_PERIOD_MICROS / SECOND {
            return Err(QuotaError::PeriodTooLong);
        }
        Self::from_micros(limit, period.as_secs() * SECOND + period.subsec_micros() as u64)
    }

    const fn from_micros(limit: u64, period_micros: u64) -> Result<Self, QuotaError> {
        if limit > MAX_LIMIT {
            return Err(QuotaError::LimitTooLarge);
        }
        let Some(period_micros) = NonZeroU64::new(period_micros) else { return Err(QuotaError::PeriodZero) };
        if period_micros.get() > MAX_PERIOD_MICROS {
            return Err(QuotaError::PeriodTooLong);
        }
        Ok(Self { limit, period_micros })
    }

    /// Returns the part of the quota for one of `processes` that limit each for itself, in [`Memory`](crate::Memory).
    ///
    /// All parts together sustain at most the quota. The limit is divided, and rounded down. If there are more processes
    /// than the limit, each process has a limit of one in a longer period. At one time each of them may then allow one
    /// request, which is more than the limit at once.
    ///
    /// ```
    /// use tower_ratelimit::Quota;
    ///
    /// assert_eq!(Quota::per_minute(100).divided_by(8)?.to_string(), "12/min");
    /// assert_eq!(Quota::per_minute(5).divided_by(8)?.to_string(), "1 per 96s");
    /// # Ok::<(), tower_ratelimit::QuotaError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is zero, or if the longer period is over 200 years.
    pub const fn divided_by(self, processes: u64) -> Result<Self, QuotaError> {
        let limit = self.limit();
        if processes == 0 {
            return Err(QuotaError::NoProcess);
        }
        if limit >= processes {
            return Self::from_micros(limit / processes, self.period_micros());
        }
        if limit == 0 {
            return Ok(self);
        }
        match self.period_micros().checked_mul(processes) {
            Some(period) => Self::from_micros(1, period.div_ceil(limit)),
            None => Err(QuotaError::PeriodTooLong),
        }
    }

    /// Returns the limit.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// Returns the period.
    pub const fn period(self) -> Duration {
        Duration::from_micros(self.period_micros.get())
    }

    pub(crate) const fn period_micros(self) -> u64 {
        self.period_micros.get()
    }
}

#[track_caller]
const fn unwrap(result: Result<Quota, QuotaError>) -> Quota {
    match result {
        Ok(quota) => quota,
        Err(error) => panic!("{}", error.message()),
    }
}

/// The reason why a [`Quota`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The limit is over 2^53.
    LimitTooLarge,
    /// The period is zero.
    PeriodZero,
    /// The period is not a whole number of microseconds.
    FractionalMicros,
    /// The period is over 200 years.
    PeriodTooLong,
    /// The text is not of the form `COUNT/PERIOD` or `COUNT per PERIOD`.
    InvalidFormat,
    /// The unit of time in the text is unknown.
    UnknownUnit,
    /// The unit of time in the text is a month or a year.
    CalendarUnit,
    /// A quota is divided by zero processes.
    NoProcess,
}

impl QuotaError {
    const fn message(self) -> &'static str {
        match self {
            Self::LimitTooLarge => "a quota's limit must be at most 2^53 (9007199254740992)",
            Self::PeriodZero => "a quota's period must be at least one microsecond",
            Self::FractionalMicros => {
                "a quota's period must be a whole number of microseconds; for higher rates than one per microsecond, \
                 use the limit per whole microsecond"
            }
            Self::PeriodTooLong => "a quota's period must be at most 200 years (73050 days)",
            Self::InvalidFormat => {
                "a quota has the form COUNT/PERIOD or COUNT per PERIOD with whole numbers; for example 100/min or 5 per 10s"
            }
            Self::CalendarUnit => {
                "a month and a year have no fixed length; write 30d, or use a calendar window: `FixedWindow::calendar` in \
                 code, `window = \"calendar\"` in configuration"
            }
            Self::NoProcess => "a quota is divided by at least one process",
            Self::UnknownUnit => {
                "a quota's period must end in us, ms, s, min, h, d or w; for example 100/min or 5 per 10s"
            }
        }
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for QuotaError {}

impl From<QuotaError> for Error {
    fn from(error: QuotaError) -> Self {
        Self::config(error.message()).with_source(error)
    }
}

/// The units that `Display` writes, longest first. It writes weeks as days.
const UNITS: [(&str, u64); 6] = [("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", 1_000), ("us", 1)];

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period_micros();
        let (unit, micros) = UNITS.into_iter().find(|(_, micros)| period.is_multiple_of(*micros)).unwrap_or(("us", 1));
        match period / micros {
            1 => write!(f, "{}/{unit}", self.limit),
            count => write!(f, "{} per {count}{unit}", self.limit),
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self})")
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let (limit, period) =
            text.split_once('/').or_else(|| text.split_once(" per ")).ok_or(QuotaError::InvalidFormat)?;
        let limit = read_number(limit.trim())?.ok_or(QuotaError::LimitTooLarge)?;
        Self::from_micros(limit, read_period(period)?)
    }
}

/// Returns the microseconds of a period: `min`, `10s`.
pub(crate) fn read_period(text: &str) -> Result<u64, QuotaError> {
    let text = text.trim();
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'_').count();
    let (count, unit) = text.split_at(digits);
    let count = if count.is_empty() { Some(1) } else { read_number(count)? };
    let unit = read_unit(unit.trim_start())?;
    count.and_then(|count| count.checked_mul(unit)).ok_or(QuotaError::PeriodTooLong)
}

/// Returns the number, `None` if it exceeds 64 bits.
fn read_number(text: &str) -> Result<Option<u64>, QuotaError> {
    let plain = text.replace('_', "");
    if !text.starts_with(|first: char| first.is_ascii_digit()) || !plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(QuotaError::InvalidFormat);
    }
    Ok(plain.parse().ok())
}

fn read_unit(text: &str) -> Result<u64, QuotaError> {
    Ok(match text {
        "us" | "\u{b5}s" | "\u{3bc}s" | "microsecond" | "microseconds" => 1,
        "ms" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => MINUTE,
        "h" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => WEEK,
        "month" | "months" | "year" | "years" => return Err(QuotaError::CalendarUnit),
        "" => return Err(QuotaError::InvalidFormat),
        _ => return Err(QuotaError::UnknownUnit),
    })
}

#[cfg(feature = "serde")]
mod serde_impl {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    use super::Quota;

    /// Serializes the text form: `"100/min"`.
    impl Serialize for Quota {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    /// Deserializes the text form: `"100/min"`.
    impl<'de> Deserialize<'de> for Quota {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            read_text(deserializer)
        }
    }

    /// Reads a quota from a text.
    pub(crate) fn read_text<'de, Q: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Q, D::Error> {
        let text = String::deserialize(deserializer).map_err(|error| {
            let error = error.to_string();
            D::Error::custom(format_args!("{}; write a quota such as \"100/min\" or \"5 per 10s\"", error.trim_end()))
        })?;
        text.parse().map_err(|error| D::Error::custom(format_args!("{text:?}: {error}")))
    }
}

#[cfg(feature = "serde")]
pub(crate) use self::serde_impl::read_text;
