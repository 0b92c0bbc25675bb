//! Calendar dates. Not here: time zones (all times are in UTC), and date formats, which differ between callers.

/// A date of the proleptic Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilDate {
    /// Year; 0 is the year before year 1.
    pub year: i64,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
}

/// The date of a day number. Day 0 is 1970-01-01; earlier days are negative. Accepts the day of any time in seconds
/// that fits in 64 bits.
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub fn civil_from_days(days: i64) -> CivilDate {
    // Years start in March here, so that a leap day is the last day of its year. An era has 400 years, or 146,097 days.
    // Day 0 of era 0 is 0000-03-01, which is 719,468 days before 1970.
    let from_march_0000 = days + 719_468;
    let (era, of_era) = (from_march_0000.div_euclid(146_097), from_march_0000.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    CivilDate { year: era * 400 + year_of_era + i64::from(month <= 2), month: month as u8, day: day as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn date(days: i64) -> (i64, u8, u8) {
        let CivilDate { year, month, day } = civil_from_days(days);
        (year, month, day)
    }

    /// Expected values are from Python's `datetime.date`, except for years before 1.
    #[test]
    fn day_numbers_give_gregorian_dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (2_932_896, (9999, 12, 31)),
            (-135_081, (1600, 2, 29)),
            (-719_162, (1, 1, 1)),
            (-719_163, (0, 12, 31)),
            (-719_469, (0, 2, 29)),
            (-719_529, (-1, 12, 31)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
        date(i64::MAX / 86_400);
        date(i64::MIN / 86_400);
    }

    proptest! {
        /// Each day is followed by the next day of its month or by the first of the next month.
        #[test]
        fn no_day_is_skipped_or_repeated(days in -1_000_000_000_i64..1_000_000_000) {
            let ((year, month, day), next) = (date(days), date(days + 1));
            let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let month_days = match month {
                2 => 28 + u8::from(is_leap_year),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                _ if day == month_days => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
            prop_assert_eq!(next, expected);
        }
    }
}
