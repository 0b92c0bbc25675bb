//! What workloads share: a graph under construction, and the result of a turn.

use crate::findings::Unit;
use plimsoll_graph::{Graph, ProgramKind, ProgramName, Role, Storage, TensorId, TensorType};
use std::time::Duration;

/// A graph under construction.
pub(crate) struct Parts {
    pub graph: Graph,
    programs: u32,
}

impl Parts {
    pub(crate) fn of(graph: Graph) -> Self {
        Self { graph, programs: 0 }
    }

    /// A tensor on the device that keeps its contents between programs.
    pub(crate) fn kept(&mut self, name: &str, ty: &TensorType) -> TensorId {
        self.graph.tensor(name, ty.clone(), Role::Activation, Storage::Persistent)
    }

    /// A new program's name.
    pub(crate) fn next_program(&mut self) -> ProgramName {
        self.programs += 1;
        ProgramKind::Numbered(self.programs).into()
    }
}

/// A workload's turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Burst {
    /// The time in which the device worked.
    pub busy: Duration,
    /// Work that was done.
    pub work: f64,
    /// What the work counts.
    pub unit: Unit,
}
