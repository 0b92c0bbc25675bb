//! Where this machine's measured times are kept, and what is said of them. Not here: the file (`plimsoll_train::MachineFile`).

use super::Failure;
use super::cache::default_cache_dir;
use super::failure::io_failure;
use ::plimsoll_plan::{Machine, Rates};
use ::plimsoll_train::{CalibrationSubject, MachineFile, MachineFileError};
use plimsoll_render::products_named;
use std::path::{Path, PathBuf};

/// Where the times of a device are kept. Errors: the user has no cache folder.
pub(super) fn path(subject: CalibrationSubject) -> Result<PathBuf, Failure> {
    Ok(default_cache_dir()?.join(MachineFile::name(subject)))
}

/// Writes a file of times, and the folder that it is in. Errors: the system refuses one of them.
pub(super) fn write(file: &MachineFile, path: &Path) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io_failure(folder.display()))?;
    }
    file.write(path).map_err(io_failure(path.display()))
}

fn words(error: &MachineFileError) -> String {
    match error {
        MachineFileError::OtherProducts { measured, asked } => {
            format!("it was measured with {}, not {}", products_named(*measured), products_named(*asked))
        }
        error => error.to_string(),
    }
}

/// The speed of a device of this machine, and a word about where it is known from. `estimates` are its rates where nothing
/// was measured, and what is said of them. A file that is asked for must be usable; the one that is kept is ignored if it
/// is not.
pub(super) fn known(
    subject: CalibrationSubject,
    estimates: (Rates, &str),
    asked: Option<&Path>,
) -> Result<(Machine, String), Failure> {
    let (rates, source) = estimates;
    let guess = |why: String| {
        let what = subject.card.map_or("this machine", |_| "the card");
        let how = if subject.tf32 { " --tf32 on" } else { "" };
        let advice = format!("run `plimsoll calibrate{how}` to measure {what}");
        Ok((Machine::of_rates(rates), format!("times are estimates{source}: {why}; {advice}")))
    };
    let path = match asked {
        Some(path) => path.to_owned(),
        None => match path(subject) {
            Ok(path) if path.try_exists().unwrap_or(true) => path,
            _ => return guess("nothing is measured yet".to_owned()),
        },
    };
    match MachineFile::read(&path, subject) {
        Ok(file) => {
            let part = file.unfinished_runs().map_or(String::new(), |[done, all]| {
                format!(", of {done} of {all} runs; `plimsoll calibrate` measures the others")
            });
            Ok((file.machine(rates), format!("times from {}{part}", path.display())))
        }
        Err(error) if asked.is_some() => {
            Err(Failure::bad_input(format!("{} can't be used: {}", path.display(), words(&error)))
                .hint("run `plimsoll calibrate --out FILE` to measure this machine"))
        }
        Err(error) => guess(format!("{} is ignored: {}", path.display(), words(&error))),
    }
}
