//! Times in the format of folder names.

use plimsoll_units::{CivilDate, civil_from_days};

/// `20261123_184354`, UTC.
pub(crate) fn stamp(time_s: f64) -> String {
    let seconds = if time_s.is_finite() { (time_s.clamp(0.0, 253_402_300_799.0)) as i64 } else { 0 };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let CivilDate { year, month, day } = civil_from_days(days);
    format!("{year:04}{month:02}{day:02}_{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        // Computed with `date -u -d @N +%Y%m%d_%H%M%S`.
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
