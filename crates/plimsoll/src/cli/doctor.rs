//! `plimsoll doctor`: shows this machine's hardware and libraries for training, what can be used, and what is missing.

use super::cache::default_cache_dir;
use super::cards::Choice;
use super::cublas::{Cublas, give_first};
use super::failure::exit_code;
use super::{Failure, blas, self_test};
use crate::streams::write_data;
use ::plimsoll_train::MachineFile;
use clap::Args;
use plimsoll_exec::cuda::{Card, CudaDevice, CudaError, CudaOptions, Driver, cublas_lt};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_files::free_space;
use plimsoll_render::{CardFindings, Diagnosis, DriverFindings, FolderFindings, LibraryInUse, diagnosis_text};
use plimsoll_telemetry::{Holder, available_memory, gpu_holders, processor_name, total_memory};
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Test a GPU: every kernel against the CPU, some training steps, speed, and memory. Takes minutes; prints a block to
    /// paste into an issue
    #[arg(long)]
    self_test: bool,
    /// GPU to test [default: the one with the most free memory]
    #[arg(long, value_name = "cuda|cuda:N", requires = "self_test")]
    device: Option<Choice>,
    /// cuBLASLt library to test in addition to the built-in kernels
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto", requires = "self_test")]
    cublas: Cublas,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &DoctorArgs) -> Result<u8, Failure> {
    if args.self_test {
        return self_test::run(args.device, &args.cublas, args.json);
    }
    let diagnosis = diagnose();
    if args.json {
        write_data(serde_json::to_string_pretty(&diagnosis).expect("plain data"))?;
    } else {
        write_data(diagnosis_text(&diagnosis))?;
    }
    Ok(exit_code::DONE)
}

fn diagnose() -> Diagnosis {
    // Read the processes before this one uses memory of the GPU.
    let holders = gpu_holders();
    let (driver, cards, problem) = match look(&holders) {
        Ok((driver, cards)) => (Some(driver), cards, None),
        Err(found) => (found.0, Vec::new(), Some(found.1)),
    };
    let free = available_memory();
    let kept = default_cache_dir();
    let (problem, advice) = problem.map(|error| (error.to_string(), Failure::from(error).hints().to_vec())).unzip();
    Diagnosis {
        driver,
        cards,
        problem,
        advice: advice.unwrap_or_default(),
        cublas_lt: cublas_lt(),
        processor: processor_name(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        host_bytes: total_memory(),
        free_host_bytes: free.as_ref().map(|free| free.bytes),
        free_host_bound: free.map(|free| free.bound.to_string()),
        blas: blas::found(),
        measurements: kept.as_deref().map(MachineFile::all).unwrap_or_default(),
        folders: [
            kept.map(|path| folder("cache", path, true)),
            plimsoll_hub::cache().map(|path| folder("hub cache", path, false)),
            std::env::current_dir().ok().map(|path| folder("runs", path.join("runs"), true)),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// A folder, the size of its files if `measured`, and the free space on its disk.
fn folder(holds: &'static str, path: PathBuf, measured: bool) -> FolderFindings {
    let used = (measured && path.is_dir()).then(|| size_of(&path));
    FolderFindings { holds, used_bytes: used, free_bytes: free_space(&path).ok(), path }
}

/// Bytes of all files in a folder and its subfolders. Does not follow links; skips unreadable entries.
fn size_of(folder: &Path) -> Bytes {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size_of(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(Bytes::ZERO, |found| Bytes(found.len())),
        _ => Bytes::ZERO,
    });
    Bytes(sizes.map(|size| size.0).sum())
}

/// The driver, if there is one, and why no GPU can be listed.
type NoCards = Box<(Option<DriverFindings>, CudaError)>;

/// The driver and its GPUs. Errors: there are none.
fn look(holders: &[Holder]) -> Result<(DriverFindings, Vec<CardFindings>), NoCards> {
    let driver = Driver::find().map_err(|error| Box::new((None, error)))?;
    let (major, minor) = driver.version();
    let found = DriverFindings { path: driver.path().to_owned(), cuda: format!("{major}.{minor}") };
    match driver.cards() {
        Ok(cards) => Ok((found, cards.into_iter().map(|card| examine(driver, card, holders)).collect())),
        Err(error) => Err(Box::new((Some(found), error))),
    }
}

/// Opens a GPU as training does, and reports the result.
fn examine(driver: &'static Driver, card: Card, holders: &[Holder]) -> CardFindings {
    let opened = CudaDevice::open(driver, card.clone(), CudaOptions::default()).map_err(DeviceError::from);
    let found = opened.and_then(|mut device| {
        give_first(&mut device);
        Ok((device.room()?, device.library()))
    });
    let (free, library, problem) = match found {
        Ok((room, library)) => (room.map(|room| room.free), library, None),
        Err(error) => (None, None, Some(error.to_string())),
    };
    CardFindings {
        index: card.index,
        name: card.name,
        compute_capability: format!("{}.{}", card.compute_capability.0, card.compute_capability.1),
        memory: card.memory,
        free,
        cublas_lt: library.map(|library| {
            let (major, minor, patch) = library.version();
            LibraryInUse { path: library.path().to_owned(), version: format!("{major}.{minor}.{patch}") }
        }),
        holders: holders.iter().filter(|holder| holder.card == card.uuid).cloned().collect(),
        uuid: card.uuid,
        problem,
    }
}
