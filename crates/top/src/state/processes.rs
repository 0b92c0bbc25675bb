//! Rows of the process pane: processes with memory on a card, and processes of runs on the CPU.

use super::Snapshot;
use plimsoll_units::Bytes;
use plimsoll_watch::{RunView, Standing, clean};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Maximum length of a process's name.
const NAME: usize = 60;

/// A process, on a card or on the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessRow {
    pub pid: u32,
    /// Index of its card.
    pub card: Option<u32>,
    pub owner: Option<String>,
    pub memory: Option<Bytes>,
    pub name: Option<String>,
    /// The run that it trains.
    pub run: Option<String>,
    /// Whether the driver reported the pid, and not the run.
    pub is_by_driver: bool,
}

impl ProcessRow {
    pub fn key(&self) -> (u32, Option<u32>) {
        (self.pid, self.card)
    }

    /// Whether a column contains `filter`, which is in lower case.
    pub fn has(&self, text: &str) -> bool {
        let words = [self.owner.as_deref(), self.name.as_deref(), self.run.as_deref()];
        words.into_iter().flatten().any(|word| word.to_lowercase().contains(text))
            || self.pid.to_string().contains(text)
    }
}

/// Sort key of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessSort {
    Memory,
    Card,
    Pid,
    Owner,
    Name,
}

impl ProcessSort {
    pub fn next(self) -> Self {
        match self {
            Self::Memory => Self::Card,
            Self::Card => Self::Pid,
            Self::Pid => Self::Owner,
            Self::Owner => Self::Name,
            Self::Name => Self::Memory,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Card => "GPU",
            Self::Pid => "pid",
            Self::Owner => "owner",
            Self::Name => "name",
        }
    }

    pub fn apply(self, rows: &mut [ProcessRow]) {
        let by = |a: &ProcessRow, b: &ProcessRow| match self {
            Self::Memory => b.memory.cmp(&a.memory),
            Self::Card => a.card.cmp(&b.card),
            Self::Pid => Ordering::Equal,
            Self::Owner => a.owner.cmp(&b.owner),
            Self::Name => a.name.cmp(&b.name),
        };
        rows.sort_by(|a, b| by(a, b).then(a.pid.cmp(&b.pid)).then(a.card.cmp(&b.card)));
    }
}

/// All rows, unsorted.
pub(crate) fn process_rows(snapshot: &Snapshot, users: &BTreeMap<u32, String>) -> Vec<ProcessRow> {
    let at_work = || snapshot.runs.iter().filter(|run| run.standing == Standing::Running);
    let run_of = |pid: u32| at_work().find(|run| run.processes.contains(&pid)).map(|run| run.name.clone());
    let owner = |uid: u32| users.get(&uid).map_or_else(|| uid.to_string(), |name| clean(name, NAME));
    let mut rows = Vec::new();
    for card in snapshot.machine.cards.iter().filter(|card| card.is_there) {
        rows.extend(card.sample.processes.iter().map(|process| ProcessRow {
            pid: process.pid,
            card: Some(card.sample.index),
            owner: process.uid.map(owner),
            memory: process.used,
            name: process.name.as_deref().map(|name| clean(name, NAME)),
            run: run_of(process.pid),
            is_by_driver: true,
        }));
    }
    let without_card = at_work().filter_map(|run| {
        let pid = run.process.filter(|pid| rows.iter().all(|row| row.pid != *pid))?;
        Some(ProcessRow {
            pid,
            card: None,
            owner: run.process_uid.map(owner),
            memory: memory(run),
            name: None,
            run: Some(run.name.clone()),
            is_by_driver: false,
        })
    });
    let without_card = without_card.collect::<Vec<_>>();
    rows.extend(without_card);
    rows
}

fn memory(run: &RunView) -> Option<Bytes> {
    run.last.map(|last| Bytes(last.memory_bytes))
}
