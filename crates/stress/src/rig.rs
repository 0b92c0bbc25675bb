//! All workloads in one plan: the programs of products, attention, transfers and training, and blocks with patterns in all
//! memory that they leave, so that memory is full whatever runs.

use crate::device::{OpenDevice, StressError};
use crate::exact::{self, Exact};
use crate::findings::{MemoryFilled, WrongResults};
use crate::known::ProductAnswer;
use crate::memory::FilledMemory;
use crate::parts::{Burst, Parts};
use crate::protocol::WorkloadKind;
use crate::sizes::Sizes;
use crate::training::Training;
use crate::transfers::Transfers;
use plimsoll_graph::{ALIGNMENT, DType, DeviceKind, Graph, GraphError, Targets};
use plimsoll_plan::{Plan, Precision, lay_out};
use plimsoll_train::{Engine, TrainError};
use plimsoll_units::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Number of blocks that the device moves.
const MOVED: usize = 8;

/// Number of the other blocks if they are small, and words of the largest.
const BLOCKS: usize = 64;
const BLOCK: usize = 16 << 20;

/// Fewest words of a block that is moved.
const FEWEST_MOVED: usize = 256;

/// The precisions of products and attention.
const PRECISIONS: [(DType, &str); 3] = [(DType::F32, "fp32"), (DType::F16, "fp16"), (DType::Bf16, "bf16")];

/// A workload.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn {
    Patterns,
    Moves,
    Exact(usize),
    Transfers,
    Training,
}

/// All workloads with their device.
pub(crate) struct Rig {
    engine: Engine,
    exacts: Vec<Exact>,
    memory: FilledMemory,
    transfers: Transfers,
    training: Training,
}

/// Workloads without the memory that they leave.
struct Workloads {
    parts: Parts,
    exacts: Vec<Exact>,
    transfers: Transfers,
    training: Training,
    /// The batch sizes of training.
    batches: Plan,
}

impl Workloads {
    fn build(sizes: &Sizes, targets: &Targets, precision: Precision, lap: Duration) -> Result<Self, StressError> {
        let model = sizes.model();
        let (graph, batches) = model.plan(targets, precision)?;
        let mut parts = Parts::of(graph);
        let answer = Arc::new(ProductAnswer::new(sizes.product));
        let mut exacts = Vec::new();
        for (dtype, name) in PRECISIONS {
            exacts.push(exact::product(&mut parts, &answer, dtype, name)?);
        }
        for (dtype, name) in PRECISIONS {
            exacts.push(exact::attention(&mut parts, sizes.attention, dtype, name)?);
        }
        let transfers = Transfers::build(&mut parts, sizes.transfer_words)?;
        Ok(Self { parts, exacts, transfers, training: Training::new(model, lap), batches })
    }

    /// The plan of the graph as it is now.
    fn plan(&self, targets: &Targets) -> Plan {
        let Plan { micro_batch, accumulation, global_batch, seq_len, target_len, .. } = self.batches;
        Plan { micro_batch, accumulation, global_batch, seq_len, target_len, ..lay_out(&self.parts.graph, targets) }
    }
}

/// Bytes of a plan within the device's budget, which on the processor includes the host's.
fn budgeted(plan: &Plan) -> Bytes {
    match plan.targets.device.kind() {
        DeviceKind::Cpu => plan.peak() + plan.host(),
        DeviceKind::Cuda => plan.peak(),
    }
}

/// Words of the blocks that fill these bytes, and whether each has a mirror.
fn blocks(bytes: u64, sizes: &Sizes) -> Vec<(usize, bool)> {
    let usable = |count: usize| (bytes.saturating_sub(count as u64 * ALIGNMENT) / 4) as usize;
    // At most half of the memory is moved.
    let moved = sizes.move_words.min(usable(2 * MOVED) / (4 * MOVED));
    let mut blocks = if moved < FEWEST_MOVED { vec![] } else { vec![(moved, true); MOVED] };
    let taken = 2 * blocks.len() * moved;
    let each = (usable(0) / BLOCKS).max(sizes.transfer_words).min(BLOCK);
    let mut left = usable(2 * blocks.len() + usable(0) / each + 1).saturating_sub(taken);
    while left > 0 {
        let words = left.min(each);
        blocks.push((words, false));
        left -= words;
    }
    blocks
}

impl Rig {
    /// Loads all workloads within `memory`, of which they take at most half, and fills the rest. Errors: `DoesNotFit` if the
    /// smallest sizes need more; the device fails.
    pub(crate) fn new(
        open: OpenDevice,
        targets: &Targets,
        precision: Precision,
        mut sizes: Sizes,
        (memory, lap): (Bytes, Duration),
        wrong: &mut WrongResults,
    ) -> Result<Self, StressError> {
        let (mut workloads, needed) = loop {
            let workloads = Workloads::build(&sizes, targets, precision, lap)?;
            let needed = budgeted(&workloads.plan(targets));
            if 2 * needed.0 <= memory.0 {
                break (workloads, needed);
            }
            let Some(smaller) = sizes.smaller() else {
                return Err(StressError::DoesNotFit { needed: Bytes(2 * needed.0), available: memory });
            };
            sizes = smaller;
        };
        let blocks = blocks(memory.0 - needed.0, &sizes);
        let memory = FilledMemory::build(&mut workloads.parts, &blocks)?;
        let plan = workloads.plan(targets);
        let mut engine = Engine::new(open(false)?, &workloads.parts.graph, plan)?;
        memory.prepare(&mut engine)?;
        for exact in &workloads.exacts {
            exact.prepare(&mut engine, wrong)?;
        }
        let Workloads { exacts, transfers, training, .. } = workloads;
        Ok(Self { engine, exacts, memory, transfers, training })
    }

    /// The workloads of a kind.
    pub(crate) fn turns(&self, kind: WorkloadKind) -> Vec<Turn> {
        let exacts = |name: &'static str| {
            let of_kind = self.exacts.iter().enumerate().filter(move |(_, exact)| exact.label.starts_with(name));
            of_kind.map(|(index, _)| Turn::Exact(index)).collect()
        };
        match kind {
            WorkloadKind::Memory => vec![Turn::Patterns, Turn::Moves],
            WorkloadKind::Product => exacts("product"),
            WorkloadKind::Attention => exacts("attention"),
            WorkloadKind::Transfer => vec![Turn::Transfers],
            WorkloadKind::Training => vec![Turn::Training],
        }
    }

    /// The name of a turn's workload.
    pub(crate) fn label(&self, turn: Turn) -> &str {
        match turn {
            Turn::Patterns => FilledMemory::LABEL,
            Turn::Moves => FilledMemory::MOVES,
            Turn::Exact(index) => &self.exacts[index].label,
            Turn::Transfers => Transfers::LABEL,
            Turn::Training => Training::LABEL,
        }
    }

    /// Runs a workload for about this long; `None` if there is nothing to run.
    pub(crate) fn run(
        &mut self,
        turn: Turn,
        time: Duration,
        wrong: &mut WrongResults,
    ) -> Result<Option<Burst>, TrainError> {
        let engine = &mut self.engine;
        match turn {
            Turn::Patterns => self.memory.run(engine, time, wrong).map(Some),
            Turn::Moves => self.memory.run_moves(engine, time),
            Turn::Exact(index) => self.exacts[index].run(engine, time, wrong).map(Some),
            Turn::Transfers => self.transfers.run(engine, time, wrong).map(Some),
            Turn::Training => self.training.run(engine, time, wrong).map(Some),
        }
    }

    /// Compares all memory with its patterns, until `is_over`.
    pub(crate) fn check_memory(
        &mut self,
        wrong: &mut WrongResults,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), TrainError> {
        self.memory.check_all(&self.engine, wrong, is_over)
    }

    /// Workloads with their sizes, in words.
    pub(crate) fn sizes(&self) -> Vec<(String, String)> {
        let exacts = self.exacts.iter().map(|exact| (exact.label.clone(), exact.size.clone()));
        let patterned = Bytes(self.memory.bytes(&self.engine)).to_string();
        let moved = Bytes(self.memory.moved_bytes(&self.engine)).to_string();
        let others = [
            (FilledMemory::LABEL, patterned),
            (FilledMemory::MOVES, moved),
            (Transfers::LABEL, Bytes(self.transfers.bytes()).to_string()),
            (Training::LABEL, self.training.model().size()),
        ];
        exacts.chain(others.map(|(label, size)| (label.to_owned(), size))).collect()
    }

    /// The filled memory. `budget`: the memory of which the plan is a part; `None` for all of the card's.
    pub(crate) fn memory(&self, budget: Option<Bytes>) -> Result<MemoryFilled, TrainError> {
        let reserved = budgeted(self.engine.plan());
        let (patterned, compared) = (Bytes(self.memory.bytes(&self.engine)), Bytes(self.memory.compared));
        let room = if budget.is_none() { self.engine.room()? } else { None };
        let (used, of) = match room {
            Some(room) => (room.total.saturating_sub(room.free), room.total),
            None => (reserved, budget.unwrap_or(reserved)),
        };
        Ok(MemoryFilled { reserved, patterned, compared, used, of, is_of_card: room.is_some() })
    }
}

/// Runs only the product in single precision rounded to TF32, for about this long.
pub(crate) fn run_tf32_product(
    open: OpenDevice,
    targets: &Targets,
    extent: usize,
    time: Duration,
    wrong: &mut WrongResults,
) -> Result<(Exact, Burst), StressError> {
    let mut parts = Parts::of(Graph::default());
    let answer = Arc::new(ProductAnswer::new(extent));
    let product: Result<Exact, GraphError> = exact::product(&mut parts, &answer, DType::F32, "tf32");
    let product = product?;
    let mut engine = Engine::new(open(true)?, &parts.graph, lay_out(&parts.graph, targets))?;
    product.prepare(&mut engine, wrong)?;
    let burst = product.run(&mut engine, time, wrong)?;
    Ok((product, burst))
}
