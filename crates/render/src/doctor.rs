//! What a machine has to train on, for people.

use crate::printable::printable_line;
use plimsoll_telemetry::Holder;
use plimsoll_units::Bytes;
use serde::Serialize;
use std::path::PathBuf;

/// The findings about a machine.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// NVIDIA's driver.
    pub driver: Option<DriverFindings>,
    /// Its cards.
    pub cards: Vec<CardFindings>,
    /// Why no card was found.
    pub problem: Option<String>,
    /// How to fix that.
    pub advice: Vec<String>,
    /// NVIDIA's library of matrix products, at any path.
    pub cublas_lt: Vec<PathBuf>,
    /// The processor's name.
    pub processor: Option<String>,
    /// Its cores.
    pub cores: usize,
    /// Memory of the host.
    pub host_bytes: Option<Bytes>,
    /// Free memory of the host.
    pub free_host_bytes: Option<Bytes>,
    /// What limits the process's share of it: `free memory`, `free in the control group …`.
    pub free_host_bound: Option<String>,
    /// Libraries of matrix products for the processor, in the order in which `--blas auto` tries them.
    pub blas: Vec<BlasFindings>,
    /// Files of measured times, from which step times are predicted.
    pub measurements: Vec<PathBuf>,
    /// Folders that runs use.
    pub folders: Vec<FolderFindings>,
}

/// A BLAS that the system has.
#[derive(Debug, Serialize)]
pub struct BlasFindings {
    /// The name by which it was found.
    pub name: String,
    /// Its own description; `None` if it can't be used.
    pub library: Option<String>,
    /// Why it can't be used.
    pub problem: Option<String>,
}

/// A folder that runs read or write.
#[derive(Debug, Serialize)]
pub struct FolderFindings {
    /// Its purpose.
    pub holds: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Bytes of its files; `None` if it does not exist yet or was not measured.
    pub used_bytes: Option<Bytes>,
    /// Free bytes of its disk; `None` if the system does not report them.
    pub free_bytes: Option<Bytes>,
}

/// A driver.
#[derive(Debug, Serialize)]
pub struct DriverFindings {
    /// Its library.
    pub path: String,
    /// The newest CUDA that it knows.
    pub cuda: String,
}

/// A library of products that works.
#[derive(Debug, Serialize)]
pub struct LibraryInUse {
    /// Its path.
    pub path: PathBuf,
    /// `13.1.0`
    pub version: String,
}

/// A card.
#[derive(Debug, Serialize)]
pub struct CardFindings {
    /// Its number.
    pub index: usize,
    /// The product.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// `8.6`
    pub compute_capability: String,
    /// All of its memory.
    #[serde(rename = "memory_bytes")]
    pub memory: Bytes,
    /// The library that computes its matrix products by default.
    pub cublas_lt: Option<LibraryInUse>,
    /// Free memory after the driver and the library have taken theirs; `None` if the card can't be used.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// Processes that hold its memory.
    pub holders: Vec<Holder>,
    /// Why it can't be used.
    pub problem: Option<String>,
}

/// The findings, a line each.
pub fn diagnosis_text(found: &Diagnosis) -> String {
    let mut lines = vec![match &found.driver {
        Some(driver) => format!("driver    {}, CUDA {}", driver.path, driver.cuda),
        None => "driver    none".to_owned(),
    }];
    lines.extend(found.problem.iter().map(|problem| format!("problem   {}", printable_line(problem))));
    lines.extend(found.advice.iter().map(|advice| format!("hint      {advice}")));
    found.cards.iter().for_each(|card| lines.extend(card_lines(card)));
    lines.push(format!("cuBLASLt  {}", library_line(found)));
    let name = found.processor.as_deref().map_or(String::new(), |name| format!("{}, ", printable_line(name)));
    lines.push(format!("CPU       {name}{} cores", found.cores));
    lines.push(format!("memory    {}", memory_line(found)));
    lines.push(format!("BLAS      {}", blas_line(&found.blas)));
    lines.push(match found.measurements.as_slice() {
        [] => "times     nothing is measured yet; `plimsoll calibrate` measures this machine".to_owned(),
        files => format!("times     measured: {}", shown(files)),
    });
    lines.extend(found.folders.iter().map(folder_line));
    // Of equal cards, the first.
    let best = found.cards.iter().rev().filter(|card| card.free.is_some()).max_by_key(|card| card.free);
    lines.push(match best {
        Some(card) => format!("`--device auto` uses GPU {}, {}", card.index, printable_line(&card.name)),
        None => "`--device auto` uses the CPU".to_owned(),
    });
    lines.join("\n")
}

fn memory_line(found: &Diagnosis) -> String {
    let all = found.host_bytes.map_or(String::new(), |all| format!("{all}; "));
    let bound = found.free_host_bound.as_deref().unwrap_or("free");
    format!("{all}{} {bound}", found.free_host_bytes.map_or("-".to_owned(), |free| free.to_string()))
}

fn blas_line(all: &[BlasFindings]) -> String {
    let words = |blas: &BlasFindings| match (&blas.library, &blas.problem) {
        (Some(library), _) => format!("{} ({})", blas.name, printable_line(library)),
        (None, problem) => {
            format!("{} can't be used: {}", blas.name, printable_line(problem.as_deref().unwrap_or("unknown reason")))
        }
    };
    match all {
        [] => "not found and not needed: the built-in kernels multiply matrices".to_owned(),
        all => {
            let listed = all.iter().map(words).collect::<Vec<_>>().join(", ");
            let first = all.iter().find(|blas| blas.library.is_some());
            let used = first.map_or(String::new(), |blas| format!("; `--blas auto` uses {}", blas.name));
            format!("{listed}{used}")
        }
    }
}

fn folder_line(folder: &FolderFindings) -> String {
    let free = folder.free_bytes.map_or(String::new(), |free| format!(", {free} free on its disk"));
    let used = folder.used_bytes.map_or(String::new(), |used| format!(", {used}"));
    format!("{:<9} {}{used}{free}", folder.holds, printable_line(&folder.path.display().to_string()))
}

fn shown(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| printable_line(&path.display().to_string()).into_owned());
    paths.collect::<Vec<_>>().join(", ")
}

/// The library that multiplies on cards, and the other libraries that were found.
fn library_line(found: &Diagnosis) -> String {
    let in_use = found.cards.iter().find_map(|card| card.cublas_lt.as_ref());
    let others = found.cublas_lt.iter().filter(|path| in_use.is_none_or(|library| library.path != **path));
    let others = shown(&others.cloned().collect::<Vec<_>>());
    match in_use {
        Some(LibraryInUse { path, version }) => {
            let also = if others.is_empty() { others } else { format!("; also found: {others}") };
            format!("{version}, {}, multiplies matrices{also}", printable_line(&path.display().to_string()))
        }
        None if others.is_empty() => "not found and not needed: the built-in kernels multiply matrices".to_owned(),
        None => format!("{others}, unusable here: the built-in kernels multiply matrices"),
    }
}

fn card_lines(card: &CardFindings) -> Vec<String> {
    let CardFindings { index, name, compute_capability, memory, free, holders, problem, .. } = card;
    let state = match (free, problem) {
        (Some(free), _) => format!("{free} of {memory} free"),
        (None, Some(problem)) => format!("{memory}; can't be used: {}", printable_line(problem)),
        (None, None) => format!("{memory}; free memory is unknown"),
    };
    let mut lines =
        vec![format!("GPU {index}     {}, compute capability {compute_capability}, {state}", printable_line(name))];
    lines.extend(holders.iter().map(|holder| format!("          {}", held_by(holder))));
    lines
}

/// A process and how much of a card's memory it holds.
pub fn held_by(holder: &Holder) -> String {
    let name = holder.name.as_deref().map_or("a process".into(), |name| printable_line(name).into_owned());
    let used = holder.used.map_or("some memory".to_owned(), |used| used.to_string());
    let owner = holder.owner.as_deref().map_or(String::new(), |owner| format!(" of {}", printable_line(owner)));
    format!("{used} is held by {name} ({}){owner}", holder.pid)
}
