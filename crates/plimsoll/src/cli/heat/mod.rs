//! Heat, for runs of our own and for other people's programs: the limits that flags ask for, cards under one guard, and what
//! it does in words. Not here: the decisions (`plimsoll-heat`), and who carries them out (`train/watch.rs`, `supervise/heat.rs`).

mod guarded;
mod words;

pub(super) use guarded::{Guarded, Told};

use super::Failure;
use plimsoll_heat::{Limits, Settings, Thresholds};

/// Settings that are limits. Errors: they are none.
pub(super) fn checked(settings: Settings) -> Result<Settings, Failure> {
    let hint = "`--resume-temp`, `--throttle-temp` and `--max-temp` rise in this order; usual are 70, 78 and 83";
    match Limits::new(&settings, &Thresholds::default()) {
        Ok(_) => Ok(settings),
        Err(error) => Err(Failure::bad_flag(error.to_string()).hint(hint)),
    }
}
