//! What is known of this machine's speed: a file that `calibrate` writes and that plans are predicted by.

use super::Failure;
use super::failure::io_failure;
use super::train::default_cache_dir;
use ::plimsoll_exec::blas_in_use;
use ::plimsoll_plan::{Machine, Rates, Sample};
use plimsoll_telemetry::processor_name;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the file, and of the kernels whose times are in it.
const VERSION: u32 = 1;
/// A few hundred samples are some hundred kilobytes.
const FILE_BYTES_MAX: Bytes = Bytes::mib(16);

/// The file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineFile {
    version: u32,
    program: String,
    processor: String,
    threads: usize,
    /// The BLAS that large products were left to; none if they were the built-in ones.
    #[serde(default)]
    blas: Option<String>,
    samples: Vec<Sample>,
}

impl MachineFile {
    pub(super) fn new(threads: usize, samples: Vec<Sample>) -> Self {
        Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            processor: processor_name().unwrap_or_default(),
            threads,
            blas: blas_in_use().map(ToString::to_string),
            samples,
        }
    }

    /// Where it is kept for so many threads, and whether products are left to a BLAS.
    /// Errors: the user has no cache folder.
    pub(super) fn path(threads: usize) -> Result<PathBuf, Failure> {
        let blas = if blas_in_use().is_some() { "-blas" } else { "" };
        Ok(default_cache_dir()?.join(format!("machine-{threads}-threads{blas}.json")))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io_failure(folder.display()))?;
        }
        let text = serde_json::to_string(self).expect("plain data");
        std::fs::write(path, text).map_err(io_failure(path.display()))
    }

    /// Why its times are not this machine's and this program's, if they are not.
    fn foreign(&self, threads: usize) -> Option<String> {
        let here = Self::new(threads, Vec::new());
        if (self.version, &self.program) != (here.version, &here.program) {
            return Some("it was measured with another version of this program".to_owned());
        }
        if self.processor != here.processor {
            return Some(format!("it was measured on another machine, {}", self.processor));
        }
        if self.blas != here.blas {
            let products = |blas: &Option<String>| blas.clone().unwrap_or_else(|| "the built-in products".to_owned());
            return Some(format!("it was measured with {}, not {}", products(&self.blas), products(&here.blas)));
        }
        (self.threads != threads).then(|| format!("it was measured with {} threads, not {threads}", self.threads))
    }

    pub(super) fn machine(self, threads: usize) -> Machine {
        Machine::measured(Rates::guess(threads), self.samples)
    }
}

/// This machine's speed, and a word about where it is known from. A file that is asked for must be usable; the one
/// that is kept is ignored if it is not.
pub(super) fn known(threads: usize, asked: Option<&Path>) -> Result<(Machine, String), Failure> {
    let guess = |why: String| {
        let advice = "run `plimsoll calibrate` to measure this machine";
        Ok((Machine::of_rates(Rates::guess(threads)), format!("times are estimates: {why}; {advice}")))
    };
    let path = match asked {
        Some(path) => path.to_owned(),
        None => match MachineFile::path(threads) {
            Ok(path) if path.try_exists().unwrap_or(true) => path,
            _ => return guess("nothing is measured yet".to_owned()),
        },
    };
    let read = || -> Result<MachineFile, String> {
        let text = plimsoll_files::read_text(&path, FILE_BYTES_MAX).map_err(|e| e.to_string())?;
        let file: MachineFile = serde_json::from_str(&text).map_err(|e| format!("it is damaged: {e}"))?;
        match file.foreign(threads) {
            Some(why) => Err(why),
            None => Ok(file),
        }
    };
    match read() {
        Ok(file) => Ok((file.machine(threads), format!("times from {}", path.display()))),
        Err(why) if asked.is_some() => Err(Failure::bad_input(format!("{} can't be used: {why}", path.display()))
            .hint("run `plimsoll calibrate --out FILE` to measure this machine")),
        Err(why) => guess(format!("{} is ignored: {why}", path.display())),
    }
}
