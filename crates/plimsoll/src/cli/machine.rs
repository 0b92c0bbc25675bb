//! What is known of this machine's speed: a file that `calibrate` writes and that plans are predicted by.

use super::Failure;
use super::cache::default_cache_dir;
use super::failure::io_failure;
use ::plimsoll_exec::blas_in_use;
use ::plimsoll_plan::{Machine, Rates, Sample};
use plimsoll_graph::Products;
use plimsoll_render::products_named;
use plimsoll_telemetry::processor_name;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the file, and of the kernels whose times are in it.
const VERSION: u32 = 3;
/// A few hundred samples are some hundred kilobytes.
const FILE_BYTES_MAX: Bytes = Bytes::mib(16);
/// A node of the slowest machine takes seconds.
const SECONDS_MAX: f64 = 3600.0;
/// A norm works through the gradients of all parameters; the largest models have thousands.
const OPERANDS_MAX: usize = 1_000_000;

/// What is measured: a card by its name, or the processor with so many threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) threads: usize,
    pub(super) card: Option<&'a str>,
    /// Whether products in single precision round their operands to TF32.
    pub(super) tf32: bool,
    /// What multiplies matrices on a card.
    pub(super) products: Products,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineFile {
    version: u32,
    program: String,
    processor: String,
    threads: usize,
    /// The card's name; none if the processor was measured.
    #[serde(default)]
    card: Option<String>,
    /// Whether products in single precision rounded their operands to TF32.
    #[serde(default)]
    tf32: bool,
    /// What multiplied matrices on the card.
    #[serde(default)]
    products: Products,
    /// The BLAS that large products were left to; none if they were the built-in ones.
    #[serde(default)]
    blas: Option<String>,
    /// Runs of the calibration that are done, of all; `None` in files of earlier versions, whose calibration ended.
    #[serde(default)]
    runs: Option<[usize; 2]>,
    samples: Vec<Sample>,
}

impl MachineFile {
    pub(super) fn new(subject: Subject, samples: Vec<Sample>, runs: Option<[usize; 2]>) -> Self {
        Self {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            processor: processor_name().unwrap_or_default(),
            threads: subject.threads,
            card: subject.card.map(str::to_owned),
            tf32: subject.tf32,
            products: subject.products,
            blas: blas_in_use().map(ToString::to_string),
            runs,
            samples,
        }
    }

    /// Where it is kept for a card with TF32 and a library of products or without, or for so many threads and whether products are left to a BLAS.
    /// Errors: the user has no cache folder.
    pub(super) fn path(subject: Subject) -> Result<PathBuf, Failure> {
        let name = match subject.card {
            Some(card) => {
                let name = card.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
                let tf32 = if subject.tf32 { "-tf32" } else { "" };
                let products = if subject.products == Products::CublasLt { "-cublas" } else { "" };
                format!("{name}{tf32}{products}")
            }
            None if blas_in_use().is_some() => format!("{}-threads-blas", subject.threads),
            None => format!("{}-threads", subject.threads),
        };
        Ok(default_cache_dir()?.join(format!("machine-{name}.json")))
    }

    /// All files of this kind in a folder.
    pub(super) fn all(folder: &Path) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("machine-") && name.ends_with(".json")
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files = entries.map(|entry| entry.path()).filter(is_one).collect::<Vec<_>>();
        files.sort();
        files
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io_failure(folder.display()))?;
        }
        let text = serde_json::to_string(self).expect("plain data");
        plimsoll_files::write_whole(path, text.as_bytes()).map_err(io_failure(path.display()))
    }

    /// What a calibration of the same subject that did not end has measured, and how many of its runs are done. Nothing where
    /// there is no such file.
    pub(super) fn unfinished(path: &Path, subject: Subject) -> (Vec<Sample>, usize) {
        match Self::read(path, subject) {
            Ok(Self { samples, runs: Some([done, all]), .. }) if done < all => (samples, done),
            _ => (Vec::new(), 0),
        }
    }

    /// A file that can be used. Errors: why it can't.
    fn read(path: &Path, subject: Subject) -> Result<Self, String> {
        let text = plimsoll_files::read_text(path, FILE_BYTES_MAX).map_err(|e| e.to_string())?;
        let file: Self = serde_json::from_str(&text).map_err(|e| format!("it is damaged: {e}"))?;
        if let Some(sample) = file.samples.iter().find(|sample| !is_plausible(sample)) {
            let Sample { op, operands, seconds, .. } = sample;
            return Err(format!("it is damaged: a sample of {op} has operands: {operands}, seconds: {seconds}"));
        }
        match file.foreign(subject) {
            Some(why) => Err(why),
            None => Ok(file),
        }
    }

    /// Why its times are not this machine's and this program's, if they are not.
    fn foreign(&self, subject: Subject) -> Option<String> {
        let (here, threads) = (Self::new(subject, Vec::new(), None), subject.threads);
        if (self.version, &self.program) != (here.version, &here.program) {
            return Some("it was measured with another version of this program".to_owned());
        }
        if self.processor != here.processor {
            return Some(format!("it was measured on another machine, {}", self.processor));
        }
        if self.card != here.card {
            let subject = |card: &Option<String>| card.clone().unwrap_or_else(|| "the CPU".to_owned());
            return Some(format!("it was measured on {}, not on {}", subject(&self.card), subject(&here.card)));
        }
        if self.tf32 != here.tf32 {
            let products = |tf32: bool| if tf32 { "with TF32" } else { "without TF32" };
            return Some(format!("it was measured {}, not {}", products(self.tf32), products(here.tf32)));
        }
        if self.products != here.products {
            return Some(format!(
                "it was measured with {}, not {}",
                products_named(self.products),
                products_named(here.products)
            ));
        }
        if self.card.is_some() {
            // The processor's part in a card's steps is predicted from its memory alone.
            return None;
        }
        if self.blas != here.blas {
            let products = |blas: &Option<String>| blas.clone().unwrap_or_else(|| "the built-in products".to_owned());
            return Some(format!("it was measured with {}, not {}", products(&self.blas), products(&here.blas)));
        }
        (self.threads != threads).then(|| format!("it was measured with {} threads, not {threads}", self.threads))
    }
}

/// Whether a node can have been measured so. Times that aren't would add up to infinity or nothing, as would those of each of
/// too many operands, and plans by them would be said not to fit or to take no time.
fn is_plausible(sample: &Sample) -> bool {
    sample.seconds.is_normal() && (0.0..SECONDS_MAX).contains(&sample.seconds) && sample.operands <= OPERANDS_MAX
}

/// The speed of a device of this machine, and a word about where it is known from. `estimates` are its rates where nothing
/// was measured, and what is said of them. A file that is asked for must be usable; the one that is kept is ignored if it
/// is not.
pub(super) fn known(
    subject: Subject,
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
        None => match MachineFile::path(subject) {
            Ok(path) if path.try_exists().unwrap_or(true) => path,
            _ => return guess("nothing is measured yet".to_owned()),
        },
    };
    match MachineFile::read(&path, subject) {
        Ok(file) => {
            let part = match file.runs {
                Some([done, all]) if done < all => {
                    format!(", of {done} of {all} runs; `plimsoll calibrate` measures the others")
                }
                _ => String::new(),
            };
            Ok((Machine::measured(rates, file.samples), format!("times from {}{part}", path.display())))
        }
        Err(why) if asked.is_some() => Err(Failure::bad_input(format!("{} can't be used: {why}", path.display()))
            .hint("run `plimsoll calibrate --out FILE` to measure this machine")),
        Err(why) => guess(format!("{} is ignored: {why}", path.display())),
    }
}
