//! Civil dates as days since the Unix epoch, in the proleptic Gregorian calendar.

/// The days of four centuries, after which the calendar repeats.
const CYCLE: i64 = 146_097;

/// The days from 1 March of year 0 to the Unix epoch.
const EPOCH: i64 = 719_468;

/// A month of a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Month {
    pub(super) year: i64,
    /// 1 to 12.
    pub(super) month: i64,
}

impl Month {
    /// Returns the month of a day, and the day of the month.
    // Years begin in March, so that a leap day is the last day of its year. In such a year the month `m` (0 is March)
    // begins `(153 m + 2) / 5` days after the year does.
    pub(super) const fn of(day: i64) -> (Self, i64) {
        let since = day + EPOCH;
        let (cycle, of_cycle) = (since.div_euclid(CYCLE), since.rem_euclid(CYCLE));
        // The days of the cycle without its leap days.
        let without_leap = of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / (CYCLE - 1);
        let of_years = without_leap / 365;
        let of_year = of_cycle - (365 * of_years + of_years / 4 - of_years / 100);
        let march_based = (5 * of_year + 2) / 153;
        let day_of_month = of_year - (153 * march_based + 2) / 5 + 1;
        let (month, years) = if march_based < 10 { (march_based + 3, 0) } else { (march_based - 9, 1) };
        (Self { year: cycle * 400 + of_years + years, month }, day_of_month)
    }

    /// Returns the first day.
    pub(super) const fn first_day(self) -> i64 {
        let (march_based, year) =
            if self.month > 2 { (self.month - 3, self.year) } else { (self.month + 9, self.year - 1) };
        let (cycle, of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
        cycle * CYCLE + of_cycle * 365 + of_cycle / 4 - of_cycle / 100 + (153 * march_based + 2) / 5 - EPOCH
    }

    /// Returns the month `months` later.
    pub(super) const fn plus(self, months: i64) -> Self {
        let months = self.year * 12 + self.month - 1 + months;
        Self { year: months.div_euclid(12), month: months.rem_euclid(12) + 1 }
    }

    /// Returns the day with this number, or the last day of a month that is shorter.
    pub(super) const fn day(self, number: i64) -> i64 {
        let (first, next) = (self.first_day(), self.plus(1).first_day());
        if first + number - 1 < next { first + number - 1 } else { next - 1 }
    }
}

/// Returns the weekday of a day: 0 is Monday.
pub(super) const fn weekday(day: i64) -> i64 {
    // The epoch is a Thursday.
    (day + 3).rem_euclid(7)
}
