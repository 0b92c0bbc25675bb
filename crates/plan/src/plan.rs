//! The Plan: plain data that says where every byte of a run is stored and which steps run in which order. A device needs
//! nothing else to run it, and decides nothing.
//!
//! ```text
//! offset
//!   peak ┤            ┌────────────┐
//!        │   ┌────────┤ transients │   a program's tensors, packed over its time
//!   base ┼───┴────────┴────────────┴─
//!        │ carried: key/value caches      (only under programs that use them)
//!        │ staging scalars, moments, gradients, weights: persistent
//!      0 ┴──────────────────────────── time
//! ```

use crate::budget::{Budget, PlannedMemory};
use crate::cost::Machine;
use crate::queue::Queue;
use crate::stored;
use plimsoll_graph::{
    DType, MemoryId, Op, Pass, PerMemory, Ports, ProgramKind, ProgramName, Role, Storage, Target, Targets, TensorId,
    TensorType, first_of_step,
};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// A tensor with its offset. Transient tensors may share bytes at different times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedTensor {
    /// As in the graph.
    pub name: String,
    /// Shape and dtype.
    #[serde(flatten)]
    pub ty: TensorType,
    /// What it is for.
    pub role: Role,
    /// How long its bytes stay.
    pub storage: Storage,
    /// The memory that it rests in.
    #[serde(rename = "place")]
    pub memory: MemoryId,
    /// First byte in that memory's arena.
    pub offset: u64,
}

impl PlannedTensor {
    /// The bytes that it takes.
    pub fn region(&self) -> Region {
        Region { offset: self.offset, bytes: self.ty.elements() as u64 * self.dtype().size_bytes() }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }
}

/// A range of bytes in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Region {
    /// The first byte after it.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// One op on tensors with offsets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// Operands, as indices into the plan's tensors.
    pub inputs: Vec<TensorId>,
    /// Results, as indices into the plan's tensors.
    pub outputs: Vec<TensorId>,
    /// The memory that it works in; the device's for steps that move tensors from one memory to another.
    #[serde(rename = "place")]
    pub memory: MemoryId,
    /// Its scratch in that memory, if the op needs any.
    pub scratch: Option<Region>,
    /// The part of the program that it belongs to.
    pub pass: Pass,
    /// The model's block that it belongs to, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// Earlier steps of other queues that must finish before this one starts, by their index in the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u32>,
}

/// A program whose tensors have offsets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedProgram {
    /// As in the graph.
    pub name: ProgramName,
    /// End of the highest byte that the program uses of each memory.
    #[serde(flatten, with = "stored::peaks")]
    pub peaks: PerMemory<u64>,
    /// Lower bound on the program's peak on the device: the largest sum of live bytes.
    pub lower_bound_bytes: u64,
    /// Index of the step at which the most bytes are live; the number of steps where that is when results are read.
    pub fullest_step: usize,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// What the host writes before and reads after.
    pub ports: Ports,
}

impl PlannedProgram {
    /// End of the highest byte that the program uses on the device.
    pub fn peak_bytes(&self) -> u64 {
        self.peaks[MemoryId::DEVICE]
    }
}

/// What the bytes at the moment of the peak are for. The parts and `unused_bytes` sum to the plan's peak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Parameters.
    pub weights_bytes: u64,
    /// Their gradients.
    pub gradients_bytes: u64,
    /// Moments, weights in full precision, averages.
    pub optimizer_bytes: u64,
    /// What ops hand to each other, caches too.
    pub activations_bytes: u64,
    /// Working memory of the op that runs at that moment.
    pub scratch_bytes: u64,
    /// Token batches, losses, logits.
    pub staging_bytes: u64,
    /// What packing could not fill: gaps, and the padding of sizes to the alignment.
    pub unused_bytes: u64,
}

impl Breakdown {
    /// The sum of all parts but what is unused.
    pub fn total(&self) -> u64 {
        let transient = self.activations_bytes + self.scratch_bytes + self.staging_bytes;
        self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + transient
    }

    /// Adds bytes of a role.
    pub fn add(&mut self, role: Role, bytes: u64) {
        *match role {
            Role::Weight => &mut self.weights_bytes,
            Role::Gradient => &mut self.gradients_bytes,
            Role::Optimizer => &mut self.optimizer_bytes,
            Role::Activation => &mut self.activations_bytes,
            Role::Scratch => &mut self.scratch_bytes,
            Role::Staging => &mut self.staging_bytes,
        } += bytes;
    }
}

/// Where every byte of a run is stored and which steps run in which order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this schema.
    pub version: u32,
    /// The memories, their limits and their arenas.
    #[serde(flatten, with = "stored::memories")]
    pub memories: PerMemory<PlannedMemory>,
    /// Lower bound on the device's arena for any packing of these programs.
    pub lower_bound_bytes: u64,
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
    /// Samples of a step.
    pub global_batch: usize,
    /// Tokens of a sample; of its source, where there is a decoder.
    pub seq_len: usize,
    /// Tokens of the decoder at most, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_len: Option<usize>,
    /// What the plan is made for.
    pub targets: Targets,
    /// Where a device that wants the run's scalars in its memory finds them, in its arena.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalars: Option<Region>,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of those that are trained.
    pub trained_parameters: u64,
    /// What the bytes at the peak are for.
    pub breakdown: Breakdown,
    /// All tensors; a [`TensorId`] is an index into this.
    pub tensors: Vec<PlannedTensor>,
    /// All programs.
    pub programs: Vec<PlannedProgram>,
}

impl Plan {
    /// Version of the schema that this code writes.
    pub const VERSION: u32 = 2;

    /// The program of this name; of this kind, the one for the longest sequences.
    pub fn program(&self, name: impl Into<ProgramName>) -> Option<&PlannedProgram> {
        let name = name.into();
        self.programs.iter().find(|program| program.name == name)
    }

    /// The micro-step that all micro-batches of a step run but the first, or the only one.
    pub fn repeated_micro_step(&self) -> Option<&PlannedProgram> {
        self.program(ProgramKind::MicroStepAdd).or_else(|| self.program(ProgramKind::MicroStep))
    }

    /// Tokens of a step of the longest sequences, those of source and target together, and of all
    /// candidates or answers of a sample.
    pub fn tokens_per_step(&self) -> usize {
        let rows = self.program(ProgramKind::MicroStep).and_then(|program| program.ports.decoder_tokens);
        let of_decoder = match (rows, self.target_len) {
            (Some(tokens), _) => self.accumulation * self[tokens].ty.elements(),
            (None, target_len) => self.global_batch * target_len.unwrap_or(0),
        };
        let tokens = self.program(ProgramKind::MicroStep).and_then(|program| program.ports.tokens);
        let of_rows = tokens.map(|tokens| self.accumulation * self[tokens].ty.elements());
        of_rows.unwrap_or(self.global_batch * self.seq_len) + of_decoder
    }

    /// Whether the loss is one of preferences, a mean over examples and not over tokens.
    pub fn compares(&self) -> bool {
        self.program(ProgramKind::MicroStep).is_some_and(|program| program.ports.rewards.is_some())
    }

    /// Whether the loss is one of preferences, and examples have one answer.
    pub fn judges(&self) -> bool {
        self.compares() && self.tokens_per_step() == self.global_batch * self.seq_len
    }

    /// Whether a step estimates the reference point of its loss; see [`Op::has_reference_point`].
    pub fn has_reference_point(&self) -> bool {
        let step = self.program(ProgramKind::MicroStep);
        step.is_some_and(|step| step.steps.iter().any(|step| step.op.has_reference_point()))
    }

    /// The queue that runs a step.
    pub fn queue(&self, step: &Step) -> Queue {
        let kind = |memory: MemoryId| self.memories[memory].memory.kind;
        let first = |ids: &[TensorId]| ids.first().map(|&id| kind(self[id].memory));
        Queue::of(&step.op, kind(step.memory), first(&step.inputs), first(&step.outputs))
    }

    /// Bytes that a step of the longest sequences moves through this queue between device and host.
    pub fn bytes_through(&self, queue: Queue) -> Bytes {
        let of_program = |(kind, times): (ProgramKind, usize)| {
            let steps = self.program(kind).into_iter().flat_map(|program| &program.steps);
            let moved = steps.filter(|step| matches!(step.op, Op::Transfer(_)) && self.queue(step) == queue);
            moved.map(|step| self[step.inputs[0]].ty.bytes().0).sum::<u64>() * times as u64
        };
        let first = first_of_step(self.programs.iter().map(|program| program.name.kind));
        Bytes(Machine::programs(first, self.accumulation, self.has_reference_point()).map(of_program).sum())
    }

    /// What runs a step, or starts it where it moves tensors.
    pub fn target(&self, step: &Step) -> &Target {
        &self.targets[self.memories[step.memory].memory.kind]
    }

    /// The limit of each memory.
    pub fn budget(&self) -> Budget {
        Budget::of(self.memories.map(|_, planned| planned.limit))
    }

    /// The same plan under another budget. Panics if that has other memories.
    #[must_use]
    pub fn within(mut self, budget: &Budget) -> Self {
        self.memories = self.memories.map(|id, planned| PlannedMemory { limit: budget.limits()[id], ..*planned });
        self
    }

    /// Whether all persistent tensors are where `loaded` has them, so that a device can replace `loaded` by this plan and keep
    /// their contents.
    pub fn keeps_places_of(&self, loaded: &Self) -> bool {
        let persistent = |plan: &Self| {
            let tensors = plan.tensors.iter().filter(|tensor| tensor.storage == Storage::Persistent);
            tensors.map(|t| (t.name.clone(), t.ty.clone(), t.memory, t.offset)).collect::<Vec<_>>()
        };
        (self.targets, self.scalars) == (loaded.targets, loaded.scalars) && persistent(self) == persistent(loaded)
    }

    /// Whether a step updates a parameter before it knows the norm of all gradients.
    pub fn updates_early(&self) -> bool {
        let norm = self.program(ProgramKind::Update).and_then(|update| update.ports.grad_norm);
        let early = |program: &PlannedProgram| {
            let update = program.steps.iter().position(|step| step.op.update().is_some());
            let norm = program.steps.iter().position(|step| step.outputs.iter().any(|id| Some(*id) == norm));
            update.is_some() && update < norm
        };
        let is_of_step_before = |program: &&PlannedProgram| program.name.kind == ProgramKind::HostUpdateAndMicroStep;
        self.programs.iter().filter(|program| !is_of_step_before(program)).any(early)
    }

    /// The sizes of the arenas.
    pub fn arenas(&self) -> PerMemory<u64> {
        self.memories.map(|_, planned| planned.peak_bytes)
    }

    /// What the limit of each memory has to be for this plan; zero for a memory that shares another's.
    pub fn needed(&self) -> PerMemory<Bytes> {
        self.budget().needed(&self.arenas())
    }

    /// The size of the device's arena.
    pub fn peak(&self) -> Bytes {
        Bytes(self.memories[MemoryId::DEVICE].peak_bytes)
    }

    /// The size of the host's arena.
    pub fn host(&self) -> Bytes {
        Bytes(self.memories[MemoryId::HOST].peak_bytes)
    }
}

impl std::ops::Index<TensorId> for Plan {
    type Output = PlannedTensor;
    fn index(&self, id: TensorId) -> &PlannedTensor {
        &self.tensors[id.index()]
    }
}
