//! What a machine has to train on, for people.

use crate::printable::printable_line;
use plimsoll_telemetry::Holder;
use plimsoll_units::Bytes;
use serde::Serialize;
use std::path::PathBuf;

/// What was found on a machine.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// NVIDIA's driver.
    pub driver: Option<DriverFindings>,
    /// Its cards.
    pub cards: Vec<CardFindings>,
    /// Why there are none.
    pub problem: Option<String>,
    /// What to do about that.
    pub advice: Vec<String>,
    /// NVIDIA's library of matrix products, wherever it lies.
    pub cublas_lt: Vec<PathBuf>,
    /// The processor's name.
    pub processor: Option<String>,
    /// Its cores.
    pub cores: usize,
    /// Memory of the host that is free.
    pub free_host_bytes: Option<Bytes>,
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
    /// Where it lies.
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
    /// As other tools name it.
    pub uuid: String,
    /// `8.6`
    pub compute_capability: String,
    /// All of its memory.
    #[serde(rename = "memory_bytes")]
    pub memory: Bytes,
    /// The library that its products are left to, as long as nothing else is asked for.
    pub cublas_lt: Option<LibraryInUse>,
    /// What is free once driver and library have their own; none if the card can't be used.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// Who holds memory of it.
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
    let free = found.free_host_bytes.map_or(String::new(), |free| format!(", {free} free"));
    let name = found.processor.as_deref().map_or(String::new(), |name| format!("{}, ", printable_line(name)));
    lines.push(format!("CPU       {name}{} cores{free}", found.cores));
    // The first of those with as much.
    let best = found.cards.iter().rev().filter(|card| card.free.is_some()).max_by_key(|card| card.free);
    lines.push(match best {
        Some(card) => format!("`--device auto` takes card {}, {}", card.index, printable_line(&card.name)),
        None => "`--device auto` takes the CPU".to_owned(),
    });
    lines.join("\n")
}

/// Which library multiplies on cards, and which others there are.
fn library_line(found: &Diagnosis) -> String {
    let in_use = found.cards.iter().find_map(|card| card.cublas_lt.as_ref());
    let others = found.cublas_lt.iter().filter(|path| in_use.is_none_or(|library| library.path != **path));
    let others = others.map(|path| printable_line(&path.display().to_string()).into_owned()).collect::<Vec<_>>();
    let others = others.join(", ");
    match in_use {
        Some(LibraryInUse { path, version }) => {
            let beside = if others.is_empty() { others } else { format!("; beside it {others}") };
            format!("{version}, {}, multiplies matrices{beside}", printable_line(&path.display().to_string()))
        }
        None if others.is_empty() => "not found, and not needed: the built-in kernels multiply matrices".to_owned(),
        None => format!("{others}, of no use here: the built-in kernels multiply matrices"),
    }
}

fn card_lines(card: &CardFindings) -> Vec<String> {
    let CardFindings { index, name, compute_capability, memory, free, holders, problem, .. } = card;
    let state = match (free, problem) {
        (Some(free), _) => format!("{free} of {memory} free"),
        (None, Some(problem)) => format!("{memory}; can't be used: {}", printable_line(problem)),
        (None, None) => format!("{memory}; what is free is not known"),
    };
    let mut lines =
        vec![format!("card {index}    {}, compute capability {compute_capability}, {state}", printable_line(name))];
    lines.extend(holders.iter().map(|holder| format!("          {}", held_by(holder))));
    lines
}

/// Who holds how much of a card.
pub fn held_by(holder: &Holder) -> String {
    let name = holder.name.as_deref().map_or("a process".into(), |name| printable_line(name).into_owned());
    let used = holder.used.map_or("some memory".to_owned(), |used| used.to_string());
    format!("{used} is held by {name} ({})", holder.pid)
}
