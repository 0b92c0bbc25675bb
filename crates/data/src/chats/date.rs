//! The date passed to chat templates that use the current date. It is a parameter, so that the same data yields the
//! same tokens on any day.

use plimsoll_units::{CivilDate, civil_from_days};
use std::fmt;
use std::str::FromStr;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const SECONDS_PER_DAY: u64 = 86_400;

/// A day of the Gregorian calendar, from 1970 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
}

impl Date {
    /// The day, in UTC, of a time in seconds since 1970 began.
    pub fn of_unix_seconds(seconds: u64) -> Self {
        let CivilDate { year, month, day } = civil_from_days((seconds / SECONDS_PER_DAY) as i64);
        Self { year: year as u64, month: month.into(), day: day.into() }
    }

    fn is_leap_year(self) -> bool {
        self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400))
    }

    fn days_of_month(self) -> u64 {
        match self.month {
            2 => 28 + u64::from(self.is_leap_year()),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// From 1.
    fn day_of_year(self) -> u64 {
        (1..self.month).map(|month| Self { month, ..self }.days_of_month()).sum::<u64>() + self.day
    }

    /// From 0 for Monday.
    /// Source: Sakamoto 1993, in comp.lang.c.
    fn weekday(self) -> usize {
        const SHIFTS: [u64; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = self.year - u64::from(self.month < 3);
        let from_sunday = year + year / 4 - year / 100 + year / 400 + SHIFTS[self.month as usize - 1] + self.day;
        ((from_sunday + 6) % 7) as usize
    }

    /// Formats the date as Python's `strftime` does, at midnight. Errors: an unknown directive, which is returned.
    pub(super) fn strftime(self, format: &str) -> Result<String, String> {
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut directive = characters.next();
            let is_unpadded = directive == Some('-');
            if is_unpadded {
                directive = characters.next();
            }
            let written =
                directive.and_then(|d| self.directive(d)).ok_or_else(|| format!("%{}", directive.unwrap_or(' ')))?;
            let unpadded = written.trim_start_matches(['0', ' ']);
            text += match is_unpadded {
                true if unpadded.is_empty() => "0",
                true => unpadded,
                false => &written,
            };
        }
        Ok(text)
    }

    fn directive(self, directive: char) -> Option<String> {
        let (month, weekday) = (MONTHS[self.month as usize - 1], DAYS[self.weekday()]);
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => self.to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'e' => format!("{:2}", self.day),
            'w' => ((self.weekday() + 1) % 7).to_string(),
            'u' => (self.weekday() + 1).to_string(),
            // The week number; weeks begin on Sunday or Monday.
            'U' => format!("{:02}", (self.day_of_year() + 6 - (self.weekday() as u64 + 1) % 7) / 7),
            'W' => format!("{:02}", (self.day_of_year() + 6 - self.weekday() as u64) / 7),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'c' => format!("{} {} {:2} 00:00:00 {}", &weekday[..3], &month[..3], self.day, self.year),
            'X' | 'T' => "00:00:00".to_owned(),
            'R' => "00:00".to_owned(),
            'f' => "000000".to_owned(),
            // The time has no time zone.
            'z' | 'Z' => String::new(),
            'C' => format!("{:02}", self.year / 100),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'H' | 'M' | 'S' => "00".to_owned(),
            'I' => "12".to_owned(),
            'p' => "AM".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Parses text such as `2026-11-23`. Errors: other text, or a day that does not exist, in words.
impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let no_date = || format!("`{text}` is not a date such as 2026-11-23");
        let parts: Option<Vec<u64>> = text.split('-').map(|part| part.parse().ok()).collect();
        let Some(&[year, month, day]) = parts.as_deref() else { return Err(no_date()) };
        let date = Self { year, month, day };
        let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month);
        if is_date && (1..=date.days_of_month()).contains(&day) { Ok(date) } else { Err(no_date()) }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from Python.
    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, written) in [
            (0, "1970-01-01 Thu"),
            (951_782_400, "2000-02-29 Tue"),
            (1_721_951_999, "2024-07-25 Thu"),
            (1_721_952_000, "2024-07-26 Fri"),
            (4_107_542_400, "2100-03-01 Mon"),
            (253_402_300_799, "9999-12-31 Fri"),
        ] {
            let date = Date::of_unix_seconds(seconds);
            assert_eq!(date.strftime("%F %a").unwrap(), written);
            assert_eq!(written[..10].parse::<Date>().unwrap(), date);
        }
        let date: Date = "2024-07-06".parse().unwrap();
        assert_eq!(date.strftime("%d %b %Y, %B %A %y%%").unwrap(), "06 Jul 2024, July Saturday 24%");
        let all = "%j %e %w %u %U %W %D %x %c %X %T %R %f %z%Z %C %-d %-m %-j";
        let expected =
            "188  6 6 6 26 27 07/06/24 07/06/24 Sat Jul  6 00:00:00 2024 00:00:00 00:00:00 00:00 000000  20 6 7 188";
        assert_eq!(date.strftime(all).unwrap(), expected);
        assert_eq!(date.strftime("%Q"), Err("%Q".to_owned()));
        assert_eq!(date.strftime("%"), Err("% ".to_owned()));
        for bad in
            ["", "2024", "2024-02-30", "2023-02-29", "2024-13-01", "2024-00-10", "1969-01-01", "a-b-c", "2024-1-1-1"]
        {
            assert!(bad.parse::<Date>().is_err(), "{bad}");
        }
    }
}
