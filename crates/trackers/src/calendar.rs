//! Times as folders are named by them.

/// `20261123_184354`, UTC.
pub(crate) fn stamp(time_s: f64) -> String {
    let seconds = if time_s.is_finite() { (time_s.clamp(0.0, 253_402_300_799.0)) as i64 } else { 0 };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let [year, month, day] = date(days);
    format!("{year:04}{month:02}{day:02}_{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Year, month and day of a day since 1970. Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
fn date(days: i64) -> [i64; 3] {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    [year_of_era + era * 400 + i64::from(month <= 2), month, day]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        // By `date -u -d @N +%Y%m%d_%H%M%S`.
        for (time_s, expected) in [
            (0.0, "19700101_000000"),
            (951_782_399.0, "20000228_235959"),
            (951_782_400.0, "20000229_000000"),
            (1_795_459_435.2, "20261123_184355"),
            (4_107_542_400.0, "21000301_000000"),
            (f64::NAN, "19700101_000000"),
            (-5.0, "19700101_000000"),
            (1e300, "99991231_235959"),
        ] {
            assert_eq!(stamp(time_s), expected, "{time_s}");
        }
    }
}
