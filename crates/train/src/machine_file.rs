//! The file of what a calibration measured, by which plans are predicted. Not here: measuring (`calibrate.rs`), where a user
//! keeps the file.

use plimsoll_exec::blas_in_use;
use plimsoll_files::{read_text, write_whole};
use plimsoll_graph::Products;
use plimsoll_plan::{Machine, Rates, Sample};
use plimsoll_telemetry::processor_name;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Version of the file, and of the kernels whose times are in it.
const VERSION: u32 = 3;

/// A few hundred samples are some hundred kilobytes.
const FILE_BYTES_MAX: Bytes = Bytes::mib(16);

/// A node of the slowest machine takes seconds.
const SECONDS_MAX: f64 = 3600.0;

/// A norm works through the gradients of all parameters; the largest models have thousands.
const OPERANDS_MAX: usize = 1_000_000;

/// What is measured: a card by its name, or the processor with a number of threads.
#[derive(Debug, Clone, Copy)]
pub struct CalibrationSubject<'a> {
    /// Threads of the processor.
    pub threads: usize,
    /// The card's name; `None` for the processor.
    pub card: Option<&'a str>,
    /// Whether products in single precision round their operands to TF32.
    pub tf32: bool,
    /// What multiplies matrices on a card.
    pub products: Products,
}

/// Why a file's times can't be used for a device.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// The file can't be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not such a file, or has times that can't have been measured.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// The kernels may have changed since.
    #[error("it was measured with another version of this program")]
    OtherVersion,
    /// It is another machine's.
    #[error("it was measured on another machine, {0}")]
    OtherMachine(String),
    /// It is of another card, or of the processor (`None`).
    #[error("it was measured on {}, not on {}", device(.measured), device(.asked))]
    OtherDevice {
        /// The card that was measured.
        measured: Option<String>,
        /// The card that is asked for.
        asked: Option<String>,
    },
    /// Products were rounded to TF32 and are not any more, or the reverse.
    #[error("it was measured {}, not {}", tf32(*.measured), tf32(!*.measured))]
    OtherRounding {
        /// Whether they were.
        measured: bool,
    },
    /// Matrices were multiplied by something else on the card.
    #[error("it was measured with other matrix products")]
    OtherProducts {
        /// What multiplied them.
        measured: Products,
        /// What multiplies them now.
        asked: Products,
    },
    /// Matrices were multiplied by another BLAS, or by the built-in products (`None`).
    #[error("it was measured with {}, not {}", blas(.measured), blas(.asked))]
    OtherBlas {
        /// What multiplied them.
        measured: Option<String>,
        /// What multiplies them now.
        asked: Option<String>,
    },
    /// The processor was measured with another number of threads.
    #[error("it was measured with {measured} threads, not {asked}")]
    OtherThreads {
        /// Threads that were measured.
        measured: usize,
        /// Threads that are asked for.
        asked: usize,
    },
}

fn device(card: &Option<String>) -> &str {
    card.as_deref().unwrap_or("the CPU")
}

fn tf32(is_on: bool) -> &'static str {
    if is_on { "with TF32" } else { "without TF32" }
}

fn blas(library: &Option<String>) -> &str {
    library.as_deref().unwrap_or("the built-in products")
}

/// Measured times of a device.
#[derive(Debug, Serialize, Deserialize)]
pub struct MachineFile {
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
    /// Times that were measured. `runs`: runs of the calibration that are done, of all.
    pub fn new(subject: CalibrationSubject, samples: Vec<Sample>, runs: Option<[usize; 2]>) -> Self {
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

    /// The usual name of a file for this subject and the BLAS of this process.
    pub fn name(subject: CalibrationSubject) -> String {
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
        format!("machine-{name}.json")
    }

    /// All files of this kind in a folder.
    pub fn all(folder: &Path) -> Vec<PathBuf> {
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("machine-") && name.ends_with(".json")
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files = entries.map(|entry| entry.path()).filter(is_one).collect::<Vec<_>>();
        files.sort();
        files
    }

    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        write_whole(path, serde_json::to_string(self).expect("plain data").as_bytes())
    }

    /// The times of a calibration of the same subject that did not end, and how many of its runs are done; nothing if there is
    /// no such file.
    pub fn unfinished(path: &Path, subject: CalibrationSubject) -> (Vec<Sample>, usize) {
        match Self::read(path, subject) {
            Ok(Self { samples, runs: Some([done, all]), .. }) if done < all => (samples, done),
            _ => (Vec::new(), 0),
        }
    }

    /// Reads a file whose times are those of this subject. Errors: why they are not, or can't be read.
    pub fn read(path: &Path, subject: CalibrationSubject) -> Result<Self, MachineFileError> {
        let text = read_text(path, FILE_BYTES_MAX)?;
        let file: Self = serde_json::from_str(&text).map_err(|e| MachineFileError::Damaged(e.to_string()))?;
        if let Some(sample) = file.samples.iter().find(|sample| !is_plausible(sample)) {
            let Sample { op, operands, seconds, .. } = sample;
            let problem = format!("a sample of {op} has operands: {operands}, seconds: {seconds}");
            return Err(MachineFileError::Damaged(problem));
        }
        match file.foreign(subject) {
            Some(why) => Err(why),
            None => Ok(file),
        }
    }

    /// Runs of the calibration that are done, of all, if not all are.
    pub fn unfinished_runs(&self) -> Option<[usize; 2]> {
        self.runs.filter(|[done, all]| done < all)
    }

    /// A machine by these times, and by rates where nothing was measured.
    pub fn machine(self, rates: Rates) -> Machine {
        Machine::measured(rates, self.samples)
    }

    /// Why its times are not this machine's and this program's, if they are not.
    fn foreign(&self, subject: CalibrationSubject) -> Option<MachineFileError> {
        use MachineFileError::{OtherBlas, OtherDevice, OtherMachine, OtherProducts, OtherRounding, OtherThreads};
        let (here, asked) = (Self::new(subject, Vec::new(), None), subject.threads);
        if (self.version, &self.program) != (here.version, &here.program) {
            return Some(MachineFileError::OtherVersion);
        }
        if self.processor != here.processor {
            return Some(OtherMachine(self.processor.clone()));
        }
        if self.card != here.card {
            return Some(OtherDevice { measured: self.card.clone(), asked: here.card });
        }
        if self.tf32 != here.tf32 {
            return Some(OtherRounding { measured: self.tf32 });
        }
        if self.products != here.products {
            return Some(OtherProducts { measured: self.products, asked: here.products });
        }
        if self.card.is_some() {
            // The processor's part in a card's steps is predicted from its memory alone.
            return None;
        }
        if self.blas != here.blas {
            return Some(OtherBlas { measured: self.blas.clone(), asked: here.blas });
        }
        (self.threads != asked).then_some(OtherThreads { measured: self.threads, asked })
    }
}

/// Whether a node can have been measured so. Times that aren't would add up to infinity or nothing, as would those of each of
/// too many operands, and plans by them would be said not to fit or to take no time.
fn is_plausible(sample: &Sample) -> bool {
    sample.seconds.is_normal() && (0.0..SECONDS_MAX).contains(&sample.seconds) && sample.operands <= OPERANDS_MAX
}
