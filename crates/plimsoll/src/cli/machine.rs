//! The file of this machine's measured times: its path, and messages about it. Not here: its format
//! (`plimsoll_train::MachineFile`).

use super::Failure;
use super::cache::{NO_HOME, default_cache_dir};
use super::failure::io_failure;
use ::plimsoll_plan::{Machine, Rates};
use ::plimsoll_train::{CalibrationSubject, MachineFile, MachineFileError};
use plimsoll_render::products_named;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The path of a device's file of times. Errors: the user has no cache folder.
pub(super) fn path(subject: CalibrationSubject) -> Result<PathBuf, Failure> {
    let none = || Failure::bad_flag(NO_HOME).hint("choose a file with `--out FILE`");
    Ok(default_cache_dir().ok_or_else(none)?.join(MachineFile::name(subject)))
}

/// Creates the folder for a file of times. Errors: the system refuses it.
pub(super) fn create_folder(path: &Path) -> Result<(), Failure> {
    let refused = |folder: &Path| io_failure(folder.display().to_string());
    path.parent().map_or(Ok(()), |folder| {
        let created = std::fs::create_dir_all(folder).map_err(refused(folder));
        created.map_err(|failure| failure.hint("choose a file in another folder with `--out FILE`"))
    })
}

/// Writes a file of times. Errors: the system refuses it.
pub(super) fn write(file: &MachineFile, path: &Path) -> Result<(), Failure> {
    file.write(path).map_err(io_failure(path.display()))
}

fn words(error: &MachineFileError) -> String {
    match error {
        MachineFileError::OtherProducts { measured, asked } => {
            format!("it was measured with {}, not with {}", products_named(*measured), products_named(*asked))
        }
        error => error.to_string(),
    }
}

/// The speed of a device of this machine, and a message with its source. `estimates`: its rates without measurements, and
/// their source. `asked`: the user's file; it must be usable, but an unusable file in the cache folder is ignored.
/// Errors: `asked` can't be used.
pub(super) fn known(
    subject: CalibrationSubject,
    estimates: (Rates, &str),
    asked: Option<&Path>,
) -> Result<(Machine, String), Failure> {
    let (rates, source) = estimates;
    let guess = |why: String| {
        let what = subject.card.map_or("this machine", |_| "the GPU");
        let how = if subject.tf32 { " --tf32 on" } else { "" };
        let advice = format!("run `plimsoll calibrate{how}` to measure {what}");
        Ok((Machine::of_rates(rates), format!("times are estimates{source}: {why}; {advice}")))
    };
    let path = match asked {
        Some(path) => path.to_owned(),
        None => match path(subject) {
            Ok(path) if path.try_exists().unwrap_or_else(|error| error.kind() != ErrorKind::NotADirectory) => path,
            _ => return guess("nothing is measured yet".to_owned()),
        },
    };
    match MachineFile::read(&path, subject) {
        Ok(file) => {
            let part = file.unfinished_runs().map_or(String::new(), |[done, all]| {
                format!(", {done} of {all} runs; `plimsoll calibrate` measures the rest")
            });
            Ok((file.machine(rates), format!("times from {}{part}", path.display())))
        }
        Err(error) if asked.is_some() => {
            Err(Failure::bad_input(format!("can't use {}: {}", path.display(), words(&error)))
                .hint("run `plimsoll calibrate --out FILE` to measure this machine"))
        }
        Err(error) => guess(format!("ignoring {}: {}", path.display(), words(&error))),
    }
}
