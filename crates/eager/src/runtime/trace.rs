//! What a process allocated and freed, in order, and who had it.
//! Not here: where the allocator puts it (`simulate.rs`).

use super::DType;
use crate::usage::{Kind, Phase};
use std::rc::Rc;

/// An allocation or a free of the record of this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Allocate(u32),
    Free(u32),
    /// What follows is of this phase.
    Enter(Phase),
}

/// The memory of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Card,
    Host,
    /// Nowhere: it is made where it is used.
    Fused,
}

/// A storage's bytes, and where they came from.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub bytes: u64,
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// The op that allocated it.
    pub op: &'static str,
    /// The module that was running.
    pub module: Rc<str>,
    /// What it was used for at last.
    pub kind: Kind,
}

/// All storages of a process and their events.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub records: Vec<Record>,
    pub events: Vec<Event>,
    /// Full names of the modules that are running, the innermost last.
    modules: Vec<Rc<str>>,
}

impl Trace {
    pub fn allocate(&mut self, record: Record) -> u32 {
        let id = u32::try_from(self.records.len()).expect("fewer storages than a step has");
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

    /// The full name of the module that is running.
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

    /// Continues as the module of this full name.
    pub fn enter_full(&mut self, name: Rc<str>) {
        self.modules.push(name);
    }

    pub fn leave(&mut self) {
        self.modules.pop();
    }
}
