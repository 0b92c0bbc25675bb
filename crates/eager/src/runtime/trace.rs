//! The allocations and frees of a process, in order, with the module and op of each.
//! Not here: addresses (`simulate.rs`).

use super::DType;
use crate::usage::{Kind, Phase};
use std::rc::Rc;

/// An allocation or a free of the record with this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Allocate(u32),
    Free(u32),
    /// The start of a phase.
    Enter(Phase),
}

/// Where a storage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Card,
    Host,
    /// No memory: the value is recomputed where it is used.
    Fused,
}

/// A storage: its bytes and its origin.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub bytes: u64,
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// The op that allocated it.
    pub op: &'static str,
    /// The running module.
    pub module: Rc<str>,
    /// Its last purpose.
    pub kind: Kind,
}

/// All storages of a process and their events.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub records: Vec<Record>,
    pub events: Vec<Event>,
    /// Full names of the running modules, the innermost last.
    modules: Vec<Rc<str>>,
}

impl Trace {
    pub fn allocate(&mut self, record: Record) -> u32 {
        let id = u32::try_from(self.records.len()).expect("a run has fewer than 2^32 storages");
        self.records.push(record);
        self.events.push(Event::Allocate(id));
        id
    }

    pub fn free(&mut self, id: u32) {
        self.events.push(Event::Free(id));
    }

    pub fn phase(&mut self, phase: Phase) {
        self.events.push(Event::Enter(phase));
    }

    /// The full name of the running module.
    pub fn module(&self) -> Rc<str> {
        self.modules.last().cloned().unwrap_or_else(|| Rc::from(""))
    }

    pub fn enter(&mut self, name: &str) {
        let full = match self.modules.last() {
            Some(outer) if !outer.is_empty() => format!("{outer}.{name}").into(),
            _ => Rc::from(name),
        };
        self.modules.push(full);
    }

    /// Enters the module with this full name.
    pub fn enter_full(&mut self, name: Rc<str>) {
        self.modules.push(name);
    }

    pub fn leave(&mut self) {
        self.modules.pop();
    }
}
