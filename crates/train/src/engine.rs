//! Executes a plan on a device: loads it once, initializes or fills the weights, runs programs.

use crate::{Footprint, Profile, TrainError};
use plimsoll_data::Batch;
use plimsoll_exec::cuda::ProductChoices;
use plimsoll_exec::{
    Capabilities, Device, DeviceError, Encoder, Room, converted, fill_normal, remainders, run_program,
    run_program_timed,
};
use plimsoll_graph::ops::REWARDS;
use plimsoll_graph::{
    ADAPTER_PREFIX, Coded, DType, Graph, Init, Lengths, MemoryId, Parameter, ProgramKind, ProgramName, Role, Scalars,
    TensorId, WeightCodes,
};
use plimsoll_plan::{Plan, validate};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::ops::Range;

/// The host's inputs of a program, row-major; see [`plimsoll_graph::Ports`]. Inputs without a port are ignored.
#[derive(Debug, Clone, Copy, Default)]
pub struct Feed<'a> {
    /// Token ids (B, T), or (B, S) of sources.
    pub tokens: &'a [i32],
    /// Positions (B, T) of the tokens.
    pub positions: &'a [i32],
    /// Segments of the tokens.
    pub segments: &'a [i32],
    /// Token ids (B, T) of the decoder.
    pub decoder_tokens: &'a [i32],
    /// The segments of the source (B, T) that the decoder's tokens attend to.
    pub decoder_segments: &'a [i32],
    /// Target ids (B, T).
    pub targets: &'a [i32],
}

/// Elements of a parameter that are initialized or converted at a time: little memory, and an even number, since random
/// numbers come in pairs.
const PART: usize = 1 << 16;

/// A device with a plan's arena.
pub struct Engine {
    device: Box<dyn Device>,
    plan: Plan,
    parameters: Vec<Parameter>,
    /// Number of the device's allocations at the end of the first step.
    allocations_at_first_step: Option<u64>,
    footprint: Footprint,
    /// The highest peak among the programs that ran.
    planned_bytes_of_what_ran: u64,
    profile: Option<Profile>,
    /// The scalars of the last step if the host has not made its part of the update yet.
    host_update: Option<Scalars>,
}

impl Engine {
    /// Validates the plan and reserves its arena. Errors: `Unsound`; `Device` if the plan is for another kind of
    /// device, or the arena does not fit.
    pub fn new(mut device: Box<dyn Device>, graph: &Graph, plan: Plan) -> Result<Self, TrainError> {
        validate(&plan)?;
        let Capabilities { name, kind } = device.capabilities();
        let planned = plan.targets.device.kind();
        if kind.is_some_and(|kind| kind != planned) {
            return Err(DeviceError::MadeForAnother { planned, device: name }.into());
        }
        let mut footprint = Footprint::before_load();
        device.load(&plan)?;
        footprint.measure_device(device.as_ref());
        Ok(Self {
            device,
            plan,
            parameters: graph.parameters.clone(),
            allocations_at_first_step: None,
            footprint,
            planned_bytes_of_what_ran: 0,
            profile: None,
            host_update: None,
        })
    }

    /// Whether [`exchange`](Self::exchange) can replace the plan by another one: the state has the same places in both, and the
    /// device can change its arena.
    pub fn can_exchange(&self, next: &Plan) -> bool {
        next.keeps_places_of(&self.plan)
            && (self.plan.updates_early() || !next.updates_early())
            && self.device.can_exchange(&self.plan, next)
    }

    /// Replaces the plan between two steps by one for which [`can_exchange`](Self::can_exchange) is true. The state stays where
    /// it is. Errors: `Unsound`; `Device` if the arena can't grow, and then the plan stays, or if the device failed.
    pub fn exchange(&mut self, graph: &Graph, next: Plan) -> Result<(), TrainError> {
        validate(&next)?;
        self.finish_update()?;
        self.device.exchange(&self.plan, &next)?;
        self.plan = next;
        self.parameters.clone_from(&graph.parameters);
        self.allocations_at_first_step = None;
        self.planned_bytes_of_what_ran = 0;
        self.footprint.exchanged();
        self.footprint.measure_device(self.device.as_ref());
        Ok(())
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The part of the plan's host memory that the driver pinned, if that is not all of it: copies of the rest are slower.
    pub fn pinned(&self) -> Option<Bytes> {
        self.device.pinned_bytes().map(Bytes)
    }

    /// Notes for the user on how the plan was loaded.
    pub fn notes(&self) -> Vec<String> {
        self.device.notes()
    }

    /// The library's choices for the plan's products; `None` if no library is used.
    pub fn product_choices(&self) -> Option<ProductChoices> {
        self.device.product_choices()
    }

    /// The trained parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// A tensor's name.
    pub fn name(&self, tensor: TensorId) -> &str {
        &self.plan[tensor].name
    }

    /// Whether the parameters include adapters.
    pub fn is_adapted(&self) -> bool {
        self.parameters.iter().any(|parameter| self.name(parameter.tensor).starts_with(ADAPTER_PREFIX))
    }

    /// The format of the weights that are in codes; `None` if none are.
    pub fn codes(&self) -> Option<WeightCodes> {
        self.parameters.iter().find_map(|parameter| Some(parameter.coded.as_ref()?.format))
    }

    /// Initializes all weights as their model specifies, in parts. Each value is a function of the seed and its index.
    pub fn initialize(&mut self, seed: u64) -> Result<(), TrainError> {
        self.initialize_those(seed, |name| !name.starts_with(ADAPTER_PREFIX))?;
        self.fill_norms()?;
        self.initialize_adapters(seed)
    }

    /// Initializes the adapters only. The weights below them must be there.
    pub fn initialize_adapters(&mut self, seed: u64) -> Result<(), TrainError> {
        self.initialize_those(seed, |name| name.starts_with(ADAPTER_PREFIX))
    }

    /// Initializes the weights with these names.
    fn initialize_those(&mut self, seed: u64, is_one: impl Fn(&str) -> bool) -> Result<(), TrainError> {
        let key = [seed as u32, (seed >> 32) as u32];
        for (index, parameter) in self.parameters.clone().iter().enumerate() {
            if !is_one(self.name(parameter.tensor)) {
                continue;
            }
            let copied = match parameter.init {
                Init::Copy(from) => self.view(from)?.into_owned(),
                _ => vec![],
            };
            self.fill_with(parameter, 0..self.elements(parameter), |first, values| match parameter.init {
                Init::Copy(_) => {
                    let copied = copied.as_chunks().0[first..].iter().map(|&value| f32::from_le_bytes(value));
                    values.iter_mut().zip(copied).for_each(|(value, copied)| *value = copied);
                }
                Init::Zeros => values.fill(0.0),
                Init::Ones => values.fill(1.0),
                Init::Normal(deviation) => fill_normal(values, deviation, key, index as u32, first as u64 / 2),
            })?;
        }
        Ok(())
    }

    /// Initializes all weights and the optimizer's moments, so that the next step is the first of a run.
    pub fn restart(&mut self, seed: u64) -> Result<(), TrainError> {
        self.host_update = None;
        self.initialize(seed)?;
        let states = self.parameters.iter().filter_map(|parameter| parameter.training.as_ref());
        let zeros = vec![0; PART];
        for tensor in states.flat_map(|training| training.state.clone()).collect::<Vec<_>>() {
            let bytes = self.plan[tensor].region().bytes;
            for offset in (0..bytes).step_by(PART) {
                let part = &zeros[..PART.min((bytes - offset) as usize)];
                self.device.write_part(&self.plan, tensor, offset, part)?;
            }
        }
        Ok(())
    }

    /// Sets these elements of a parameter to values in single precision, in parts; `values` receives the index of the first
    /// element of each. Weights in codes are encoded, whole matrices at a time.
    pub(crate) fn fill_with(
        &mut self,
        parameter: &Parameter,
        elements: Range<usize>,
        mut values: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), TrainError> {
        self.finish_update()?;
        let mut part = Vec::new();
        let Some(coded) = &parameter.coded else {
            for first in elements.clone().step_by(PART) {
                part.resize(PART.min(elements.end - first), 0.0);
                values(first, &mut part);
                self.fill_part(parameter, first, DType::F32, bytemuck::cast_slice(&part))?;
            }
            return Ok(());
        };
        let columns = parameter.shape(&self.plan[parameter.tensor].ty).last().copied().unwrap_or(1);
        for matrix in self.matrices(parameter, elements) {
            let mut encoder = Encoder::new(coded.format, columns);
            let most = encoder.multiple() * (PART / encoder.multiple()).max(1);
            for first in matrix.clone().step_by(most) {
                part.resize(most.min(matrix.end - first), 0.0);
                values(first, &mut part);
                let codes = encoder.encode(&part);
                self.write_part(parameter.tensor, (first / coded.format.per_byte()) as u64, &codes)?;
            }
            self.write_scales(coded, matrix.start / matrix.len(), &encoder.scales())?;
        }
        Ok(())
    }

    /// Number of the weights of one of a parameter's matrices.
    pub(crate) fn matrix_elements(&self, parameter: &Parameter) -> usize {
        parameter.shape(&self.plan[parameter.tensor].ty).iter().rev().take(2).product::<usize>().max(1)
    }

    /// The elements of each matrix among these of a parameter. Panics if one is not whole.
    fn matrices(&self, parameter: &Parameter, elements: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = self.matrix_elements(parameter);
        let is_whole = elements.start.is_multiple_of(size) && elements.end.is_multiple_of(size);
        assert!(is_whole, "weights in codes are set as whole matrices");
        elements.step_by(size).map(move |first| first..first + size)
    }

    /// Sets the scales of one of a parameter's matrices.
    pub(crate) fn write_scales(
        &mut self,
        coded: &Coded,
        matrix: usize,
        scales: &[impl AsRef<[u8]>],
    ) -> Result<(), TrainError> {
        coded.scales.iter().zip(scales).try_for_each(|(&tensor, bytes)| {
            let bytes = bytes.as_ref();
            self.write_part(tensor, (matrix * bytes.len()) as u64, bytes)
        })
    }

    /// Number of a parameter's weights.
    pub(crate) fn elements(&self, parameter: &Parameter) -> usize {
        parameter.shape(&self.plan[parameter.tensor].ty).iter().product()
    }

    /// Sets a parameter's weights from element `first` on, their master or remainder, and their average, each in its own
    /// precision, part by part. Weights in codes are encoded, whole matrices at a time. Errors: `WrongSize` if the parameter
    /// ends before the values.
    pub fn fill_parameter(
        &mut self,
        parameter: &Parameter,
        first: usize,
        dtype: DType,
        values: &[u8],
    ) -> Result<(), TrainError> {
        self.finish_update()?;
        let (elements, size) = (self.elements(parameter), dtype.size_bytes() as usize);
        if !values.len().is_multiple_of(size) || first + values.len() / size > elements {
            let tensor = self.name(parameter.tensor).to_owned();
            let (expected, found) = (((elements - first.min(elements)) * size) as u64, values.len() as u64);
            return Err(DeviceError::WrongSize { tensor, expected, found }.into());
        }
        if parameter.coded.is_some() {
            return self.fill_with(parameter, first..first + values.len() / size, |at, weights| {
                let part = &values[(at - first) * size..][..weights.len() * size];
                let single = converted(part, dtype, DType::F32);
                let single = single.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                weights.iter_mut().zip(single).for_each(|(weight, value)| *weight = value);
            });
        }
        for (number, part) in values.chunks(PART * size).enumerate() {
            self.fill_part(parameter, first + number * PART, dtype, part)?;
        }
        Ok(())
    }

    /// Sets the elements of a parameter starting at `first`.
    fn fill_part(
        &mut self,
        parameter: &Parameter,
        first: usize,
        dtype: DType,
        values: &[u8],
    ) -> Result<(), TrainError> {
        let (weights, master) = (parameter.tensor, parameter.master());
        let master = Some(master).filter(|&master| master != weights);
        let average = parameter.training.as_ref().and_then(|t| t.average);
        for tensor in [Some(weights), master, average].into_iter().flatten() {
            let stored = self.plan[tensor].dtype();
            let offset = first as u64 * stored.size_bytes();
            self.device.write_part(&self.plan, tensor, offset, &converted(values, dtype, stored))?;
        }
        if let Some(remainder) = parameter.training.as_ref().and_then(|t| t.remainder) {
            let offset = first as u64 * DType::I16.size_bytes();
            self.device.write_part(&self.plan, remainder, offset, &remainders(values, dtype))?;
        }
        Ok(())
    }

    /// Copies bytes to a tensor.
    pub fn write(&mut self, tensor: TensorId, bytes: &[u8]) -> Result<(), TrainError> {
        self.finish_update_of(tensor)?;
        Ok(self.device.write(&self.plan, tensor, bytes)?)
    }

    /// Copies bytes to a part of a tensor that begins at this offset in bytes.
    pub fn write_part(&mut self, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), TrainError> {
        self.finish_update_of(tensor)?;
        Ok(self.device.write_part(&self.plan, tensor, offset, bytes)?)
    }

    /// The device's own memory, over all processes; `None` if it uses the host's memory.
    pub fn room(&self) -> Result<Option<Room>, TrainError> {
        Ok(self.device.room()?)
    }

    /// A tensor's bytes. Panics if a part of the last update is not made yet, and the tensor is of a parameter:
    /// [`finish_update`](Self::finish_update) makes it.
    pub fn view(&self, tensor: TensorId) -> Result<Cow<'_, [u8]>, TrainError> {
        assert!(!self.awaits_update(tensor), "the update of `{}` is not finished", self.name(tensor));
        Ok(self.device.view(&self.plan, tensor)?)
    }

    /// Copies a float tensor to the host.
    pub fn read(&mut self, tensor: TensorId, values: &mut [f32]) -> Result<(), TrainError> {
        self.finish_update_of(tensor)?;
        Ok(self.device.read(&self.plan, tensor, bytemuck::cast_slice_mut(values))?)
    }

    /// Reads a tensor of one element.
    pub fn read_one(&mut self, tensor: TensorId) -> Result<f32, TrainError> {
        let mut value = [0.0];
        self.read(tensor, &mut value)?;
        Ok(value[0])
    }

    /// Makes the host's part of the last step's update, if it is not made yet: the weights and moments are then those after
    /// the step. Otherwise the next step begins with it. Errors: the device fails.
    pub fn finish_update(&mut self) -> Result<(), TrainError> {
        let Some(last) = self.host_update.take() else { return Ok(()) };
        self.start(ProgramKind::HostUpdate.into(), &last.followed_by(&last))
    }

    /// Whether the host may still have to update a tensor.
    fn awaits_update(&self, tensor: TensorId) -> bool {
        self.host_update.is_some() && matches!(self.plan[tensor].role, Role::Weight | Role::Optimizer)
    }

    fn finish_update_of(&mut self, tensor: TensorId) -> Result<(), TrainError> {
        if self.awaits_update(tensor) { self.finish_update() } else { Ok(()) }
    }

    /// The program and the scalars with which to run this program: a step begins with the host's part of the update before it.
    /// Other programs that may read weights run after that.
    fn after_host_update(
        &mut self,
        program: ProgramName,
        scalars: &Scalars,
    ) -> Result<(ProgramName, Scalars), TrainError> {
        match (program.kind, self.host_update) {
            (ProgramKind::MicroStep, Some(last)) => {
                let program = ProgramName { kind: ProgramKind::HostUpdateAndMicroStep, ..program };
                Ok((program, last.followed_by(scalars)))
            }
            _ => {
                self.finish_update()?;
                Ok((program, *scalars))
            }
        }
    }

    /// Copies the inputs of a program's ports and runs it. Panics if a port has another size.
    pub fn run_fed(
        &mut self,
        program: impl Into<ProgramName>,
        feed: &Feed,
        scalars: &Scalars,
    ) -> Result<(), TrainError> {
        let (program, scalars) = self.after_host_update(program.into(), scalars)?;
        let ports = self.ports(program);
        for (port, ids) in [
            (ports.tokens, feed.tokens),
            (ports.positions, feed.positions),
            (ports.segments, feed.segments),
            (ports.decoder_tokens, feed.decoder_tokens),
            (ports.decoder_segments, feed.decoder_segments),
            (ports.targets, feed.targets),
        ] {
            if let Some(port) = port {
                self.write(port, bytemuck::cast_slice(ids))?;
            }
        }
        self.start(program, &scalars)
    }

    /// Feeds a batch to the program of this kind for its sequence lengths, and runs it. Returns the program's name.
    /// Panics if the plan has none: a plan has programs for all lengths that the data can have.
    pub fn run_batch(
        &mut self,
        kind: ProgramKind,
        batch: &Batch,
        scalars: &Scalars,
    ) -> Result<ProgramName, TrainError> {
        let longest = Lengths { tokens: self.plan.seq_len, target: self.plan.target_len };
        let lengths = Lengths { tokens: batch.source_len, target: batch.target_len };
        let program = ProgramName { kind, lengths: (lengths != longest).then_some(lengths) };
        let positions = match (self.ports(program).positions, &batch.segments) {
            (Some(_), Some(segments)) => positions_in_segments(segments, batch.source_len),
            _ => vec![],
        };
        let feed = Feed {
            tokens: &batch.tokens,
            positions: &positions,
            segments: batch.segments.as_deref().unwrap_or_default(),
            decoder_tokens: &batch.decoder_tokens,
            decoder_segments: &batch.decoder_segments,
            targets: &batch.targets,
        };
        self.run_fed(program, &feed, scalars)?;
        Ok(program)
    }

    /// The numbers described at [`REWARDS`] that a program left; `None` unless it compares answers. Errors: the device fails.
    pub fn rewards(&mut self, program: impl Into<ProgramName>) -> Result<Option<[f64; REWARDS]>, TrainError> {
        let Some(port) = self.ports(program).rewards else { return Ok(None) };
        let mut rewards = [0.0; REWARDS];
        self.read(port, &mut rewards)?;
        Ok(Some(rewards.map(f64::from)))
    }

    /// Waits until all submitted work is complete. Errors: the device fails.
    pub fn synchronize(&mut self) -> Result<(), TrainError> {
        Ok(self.device.synchronize()?)
    }

    /// Runs a program. After `Update`, the host's part of the update is not made yet, if there is one: see
    /// [`finish_update`](Self::finish_update).
    pub fn run(&mut self, program: impl Into<ProgramName>, scalars: &Scalars) -> Result<(), TrainError> {
        let (program, scalars) = self.after_host_update(program.into(), scalars)?;
        self.start(program, &scalars)
    }

    /// Runs a program, and notes which part of an update is made.
    fn start(&mut self, program: ProgramName, scalars: &Scalars) -> Result<(), TrainError> {
        let has_host_update = || self.plan.program(ProgramKind::HostUpdate).is_some();
        match program.kind {
            ProgramKind::Update if has_host_update() => self.host_update = Some(*scalars),
            ProgramKind::HostUpdateAndMicroStep => self.host_update = None,
            _ => {}
        }
        if let Some(planned) = self.plan.program(program) {
            self.planned_bytes_of_what_ran = self.planned_bytes_of_what_ran.max(planned.peak_bytes());
        }
        let Some(profile) = &mut self.profile else {
            return Ok(run_program(self.device.as_mut(), &self.plan, program, scalars)?);
        };
        let mut observe = |step, time| profile.observe(program, step, time);
        Ok(run_program_timed(self.device.as_mut(), &self.plan, program, scalars, &mut observe)?)
    }

    /// Starts timing every node of every program.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// The times collected since then.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// The host's inputs and outputs of a program. Panics if the plan has no program of that name.
    pub fn ports(&self, program: impl Into<ProgramName>) -> plimsoll_graph::Ports {
        let program = program.into();
        let found = self.plan.program(program).unwrap_or_else(|| panic!("the plan has no program `{program}`"));
        found.ports.clone()
    }

    /// Call when the first step is complete: later allocations are counted from here.
    pub fn first_step_is_done(&mut self) {
        if self.allocations_at_first_step.is_none() {
            self.allocations_at_first_step = Some(self.device.memory().allocations);
            self.footprint.measure_device(self.device.as_ref());
        }
    }

    /// Memory of the run within its plan's first budget, including the host's if both share one memory: the resident
    /// part of the arenas at the last measurement, or their size if the system does not report it.
    pub fn held_bytes(&self) -> u64 {
        let memory = self.device.memory();
        let all = self.footprint.arena_resident_bytes;
        match self.plan.budget().host() {
            Some(_) => {
                // A card's memory is not memory of the process.
                let on_device =
                    all.zip(self.footprint.in_process_peak_bytes).map(|(all, host)| all.saturating_sub(host));
                on_device.unwrap_or(memory.arena(MemoryId::DEVICE).reserved_bytes)
            }
            None => all.unwrap_or_else(|| memory.arenas.values().map(|arena| arena.reserved_bytes).sum()),
        }
    }

    /// Measures the memory of this device and this process. Examines each page of the arenas.
    pub fn memory(&self) -> EngineMemory {
        let memory = self.device.memory();
        let mut footprint = self.footprint;
        footprint.measure_device(self.device.as_ref());
        EngineMemory {
            footprint,
            touched_bytes: memory.arena(MemoryId::DEVICE).touched_bytes,
            host_touched_bytes: memory.arena(MemoryId::HOST).touched_bytes,
            planned_bytes_of_what_ran: self.planned_bytes_of_what_ran,
            allocations_after_first_step: memory.allocations
                - self.allocations_at_first_step.unwrap_or(memory.allocations),
        }
    }
}

/// The position of each token in its segment, for rows of `row` tokens.
fn positions_in_segments(segments: &[i32], row: usize) -> Vec<i32> {
    let mut positions = vec![0; segments.len()];
    for (positions, segments) in positions.chunks_exact_mut(row).zip(segments.chunks_exact(row)) {
        for t in 1..row {
            positions[t] = if segments[t] == segments[t - 1] { positions[t - 1] + 1 } else { 0 };
        }
    }
    positions
}

/// Memory measurements of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineMemory {
    /// The system's measurements.
    pub footprint: Footprint,
    /// End of the highest region of the arena that was used.
    pub touched_bytes: u64,
    /// End of the highest region of the host's arena that was used.
    pub host_touched_bytes: u64,
    /// The planned peak of the programs that ran: below the plan's peak if no sequence had the maximum length.
    pub planned_bytes_of_what_ran: u64,
    /// Number of the device's allocations after the first step.
    pub allocations_after_first_step: u64,
}
