//! The heat limits that flags ask for. Not here: the decisions (`plimsoll-heat`), and what slows a run (`plimsoll-session`,
//! `supervise/heat.rs`).

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
