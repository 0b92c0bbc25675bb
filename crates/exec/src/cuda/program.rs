//! A plan's programs, prepared for the streams: everything that is the same in each execution is computed once. And
//! their enqueuing on the streams.
//!
//! ```text
//!   device     ─● begin ██ norm ██ weight gradient ● █████████████████─○─○─○─ end
//!   to host      ╲                                  ╲ ███ transfer ●──╱ ╱ ╱
//!   host          ╲                                                 ╲ ██ ╱
//!   to device      ╲─                                                 ── ╱         ● event recorded   ○ waited for
//! ```
//!
//! All streams of a program start after the device's stream, which waits for their end, so that programs, and copies
//! between them, run one after the other.

use super::cublas_lt::{Algorithms, ReadyProduct};
use super::error::CudaError;
use super::hooks::{Allowed, Hooks, Use};
use super::host::{HostCall, HostSide, Node, has_nodes, run_host_call};
use super::kernels::Kernels;
use super::launch::{Launch, Operands, Part, Scratch};
use super::launch_limit::LaunchLimit;
use super::ops::{are_alike, parts, updates};
use super::pinning::{Direction, HostCopy, run_host_copy};
use super::streams::{Event, Ready, ReadyLaunch, Stream};
use crate::DeviceError;
use plimsoll_graph::{Access, Io, MemoryId, Op, PerMemory, TensorId};
use plimsoll_plan::{Plan, PlannedProgram, Queue, Region, Step};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// The arenas' addresses, and the properties of the card that kernels depend on.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// The address of each arena.
    pub(super) bases: PerMemory<u64>,
    pub(super) compute_capability: (u8, u8),
    /// Whether products in single precision round their operands to TF32.
    pub(super) tf32: bool,
    /// The limit of launches, if the system has one.
    pub(super) limit: Option<Arc<LaunchLimit>>,
}

impl Setting {
    fn address(&self, memory: MemoryId, region: Region) -> u64 {
        self.bases[memory] + region.offset
    }

    /// Operands, results and scratch of a step.
    fn operands<'a>(&self, plan: &'a Plan, step: &Step) -> Operands<'a> {
        let at = |&id: &TensorId| self.address(plan[id].memory, plan[id].region());
        let scratch =
            step.scratch.map(|region| Scratch { address: self.address(step.memory, region), bytes: region.bytes });
        let scalars = plan.scalars.map_or(0, |region| self.address(MemoryId::DEVICE, region));
        Operands {
            inputs: step.inputs.iter().map(at).collect(),
            outputs: step.outputs.iter().map(at).collect(),
            scratch: scratch.unwrap_or_default(),
            scalars,
            io: io_of(plan, step),
            compute_capability: self.compute_capability,
            tf32: self.tf32,
        }
    }

    /// The parts of a step.
    pub(super) fn parts(&self, plan: &Plan, step: &Step) -> Vec<Part> {
        let operands = self.operands(plan, step);
        let parts = parts(&step.op, &operands);
        match &self.limit {
            Some(limit) if !parts.is_empty() => limit.cut(parts, &step.op, &operands),
            _ => parts,
        }
    }

    /// Address of a library's workspace for a step of the device; 0 without one.
    fn workspace(&self, plan: &Plan, step: &Step) -> u64 {
        let workspace = step.op.product_workspace(&plan.targets.device).0;
        let Some(region) = step.scratch.filter(|_| workspace > 0) else { return 0 };
        // It is at the end of the op's scratch.
        let behind = step.op.working_bytes(&io_of(plan, step), &plan.targets.device).0 - workspace;
        self.address(MemoryId::DEVICE, region) + behind
    }
}

/// The types of a step's operands and results.
pub(super) fn io_of<'a>(plan: &'a Plan, step: &Step) -> Io<'a> {
    let types = |ids: &[TensorId]| ids.iter().map(|&id| &plan.tensors[id.index()].ty).collect();
    Io { inputs: types(&step.inputs), outputs: types(&step.outputs) }
}

/// The work of a step on its stream.
enum Work {
    /// Kernels and products; empty for a step that only waits.
    Parts(Vec<Ready>),
    /// A copy between the card and the host, in parts.
    Copies(Vec<Copy>),
    /// A node of the host.
    Host(Box<HostCall>),
}

/// A part of a copy between the card and the host.
enum Copy {
    /// To the card, from this address of the host.
    ToDevice { to: u64, from: *const u8, bytes: usize },
    /// To this address of the host.
    ToHost { to: *mut u8, from: u64, bytes: usize },
    /// From or to a buffer, within the host's memory.
    OnHost(Box<HostCopy>),
}

/// A step, prepared for its stream.
pub(super) struct Job {
    queue: Queue,
    /// Numbers of the events that it waits for.
    waits: Vec<usize>,
    work: Work,
    /// The event of its end, if another step waits for it.
    records: Option<usize>,
    /// The accesses that it may make, for the stand-in's hooks.
    allowed: Vec<Allowed>,
    /// For each arena, the end of the bytes that its launches and copies access.
    pub(super) touches: PerMemory<u64>,
}

/// A program, prepared for the streams.
pub(super) struct ReadyProgram {
    jobs: Vec<Job>,
    /// Queues other than the device's that it uses.
    others: Vec<Queue>,
    /// Whether nodes of the host need the scalars.
    pub(super) has_nodes: bool,
    /// For each arena, the end of the bytes that its launches and copies access.
    pub(super) touches: PerMemory<u64>,
    /// Whether it copies between the card and the host.
    pub(super) has_copies: bool,
}

impl ReadyProgram {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The products that a library computes.
    pub(super) fn products(&self) -> impl Iterator<Item = &ReadyProduct> {
        let parts = self.jobs.iter().flat_map(|job| match &job.work {
            Work::Parts(parts) => &parts[..],
            _ => &[],
        });
        parts.filter_map(|part| match part {
            Ready::Product(product) => Some(&**product),
            Ready::Kernel(_) => None,
        })
    }
}

/// Events of a program's beginning and of the end of each of its queues; steps' events follow.
const BEGIN: usize = 0;
const ENDS: usize = 1;
const STEPS: usize = ENDS + Queue::ALL.len();

/// The most events that any program of a plan needs.
pub(super) fn events_of(plan: &Plan) -> usize {
    let waited_for = |program: &PlannedProgram| numbers_of_waited_for(program).len();
    STEPS + plan.programs.iter().map(waited_for).max().unwrap_or(0)
}

/// The steps that other steps wait for, with their events' numbers.
fn numbers_of_waited_for(program: &PlannedProgram) -> BTreeMap<u32, usize> {
    let mut waited_for = program.steps.iter().flat_map(|step| &step.waits).copied().collect::<Vec<_>>();
    waited_for.sort_unstable();
    waited_for.dedup();
    waited_for.into_iter().zip(STEPS..).collect()
}

/// Prepares a plan's programs and steps.
pub(super) struct Preparation<'a> {
    pub(super) plan: &'a Plan,
    pub(super) setting: Setting,
    pub(super) kernels: &'a Kernels,
    /// The library's products, if one is used.
    pub(super) algorithms: Option<&'a Algorithms>,
    pub(super) host: &'a Arc<HostSide>,
}

impl Preparation<'_> {
    /// A program by its index. Errors: `BadStep`, the library's.
    pub(super) fn program(&self, index: usize) -> Result<ReadyProgram, DeviceError> {
        let program = &self.plan.programs[index];
        let numbers = numbers_of_waited_for(program);
        let mut jobs = Vec::with_capacity(program.steps.len());
        for run in self.joined(program, &numbers) {
            let (first, last) = (&program.steps[run.start], run.end - 1);
            let mut job = match run.len() {
                1 => self.job(first, Node::Step(index, run.start))?,
                _ => self.updates(&program.steps[run]),
            };
            job.waits = first.waits.iter().map(|wait| numbers[wait]).collect();
            job.records = numbers.get(&(last as u32)).copied();
            jobs.push(job);
        }
        let uses = |queue: &Queue| jobs.iter().any(|job| job.queue == *queue);
        let others = Queue::ALL.into_iter().filter(|queue| *queue != Queue::Device && uses(queue)).collect::<Vec<_>>();
        let has_copies = others.iter().any(|queue| *queue != Queue::Host);
        let has_nodes = has_nodes(self.plan, program);
        if has_nodes {
            jobs.insert(0, self.beginning());
        }
        let touches = self.untouched().map(|memory, _| jobs.iter().map(|job| job.touches[memory]).max().unwrap_or(0));
        Ok(ReadyProgram { jobs, others, has_nodes, touches, has_copies })
    }

    /// The steps of each job: consecutive updates are one, if only the first waits, and only the last is waited for.
    fn joined(&self, program: &PlannedProgram, waited_for: &BTreeMap<u32, usize>) -> Vec<Range<usize>> {
        let mut runs = Vec::<Range<usize>>::new();
        for (number, step) in program.steps.iter().enumerate() {
            let joins = |run: &Range<usize>| {
                let last = run.end - 1;
                let is_free = step.waits.is_empty() && !waited_for.contains_key(&(last as u32));
                is_free && self.can_join(&program.steps[last], step)
            };
            match runs.last_mut() {
                Some(run) if joins(run) => run.end = number + 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs
    }

    /// Whether steps are updates of the device that one launch can make. Launches with a limit are those of single steps.
    fn can_join(&self, step: &Step, next: &Step) -> bool {
        let (Op::ParameterUpdate(update), Op::ParameterUpdate(other)) = (&step.op, &next.op) else { return false };
        let are_of_device = [step, next].iter().all(|step| self.plan.queue(step) == Queue::Device);
        are_of_device && are_alike(update, other) && step.inputs[1] == next.inputs[1] && self.setting.limit.is_none()
    }

    /// The job of updates that can be joined.
    fn updates(&self, steps: &[Step]) -> Job {
        let all = steps.iter().map(|step| match &step.op {
            Op::ParameterUpdate(update) => (update, self.setting.operands(self.plan, step)),
            other => unreachable!("{} is not joined", other.name()),
        });
        let parts = self.ready_kernels(updates(&all.collect::<Vec<_>>())).collect::<Vec<_>>();
        let mut touches = self.untouched();
        touches[MemoryId::DEVICE] = steps.iter().map(|step| self.end_of_arguments(step, &parts)).max().unwrap_or(0);
        let allowed = steps.iter().flat_map(|step| self.allowed(step, Queue::Device)).collect();
        Job { queue: Queue::Device, waits: vec![], work: Work::Parts(parts), records: None, allowed, touches }
    }

    fn beginning(&self) -> Job {
        let work = Work::Host(HostCall::new(self.host, Node::Begin));
        Job { queue: Queue::Host, waits: vec![], work, records: None, allowed: vec![], touches: self.untouched() }
    }

    /// The end of nothing in each arena.
    fn untouched(&self) -> PerMemory<u64> {
        self.plan.memories.map(|_, _| 0)
    }

    /// A step that waits for nothing. Errors: `BadStep`, the library's.
    pub(super) fn job(&self, step: &Step, node: Node) -> Result<Job, DeviceError> {
        let queue = self.plan.queue(step);
        let mut touches = self.untouched();
        let work = match (queue, &step.op) {
            (Queue::ToDevice | Queue::ToHost, _) => {
                let ends = self.ends_of_copy(step)?;
                let [from, to] = ends.map(|(memory, region)| self.setting.address(memory, region));
                let bytes = ends[0].1.bytes;
                for ((memory, _), at) in ends.into_iter().zip([from, to]) {
                    touches[memory] = at + bytes - self.setting.bases[memory];
                }
                Work::Copies(match queue {
                    Queue::ToDevice => self.copies(Direction::ToDevice, from, to, bytes as usize),
                    _ => self.copies(Direction::ToHost, to, from, bytes as usize),
                })
            }
            (_, Op::AwaitTransfer(_)) => Work::Parts(vec![]),
            (Queue::Host, _) => {
                touches = self.ends_of_regions(step);
                Work::Host(HostCall::new(self.host, node))
            }
            (Queue::Device, _) => {
                let parts = self.parts(step)?;
                touches[MemoryId::DEVICE] = self.end_of_arguments(step, &parts);
                Work::Parts(parts)
            }
        };
        let allowed = self.allowed(step, queue);
        Ok(Job { queue, waits: vec![], work, records: None, allowed, touches })
    }

    /// The parts of a step of the device. Errors: the library's.
    fn parts(&self, step: &Step) -> Result<Vec<Ready>, CudaError> {
        let workspace = self.setting.workspace(self.plan, step);
        let mut ready = Vec::new();
        for part in self.setting.parts(self.plan, step) {
            match (part, self.algorithms) {
                (Part::Product { pieces, .. }, Some(algorithms)) => {
                    for (piece, kernels) in pieces {
                        match algorithms.ready(&piece, workspace)? {
                            Some(product) => ready.push(Ready::Product(Box::new(product))),
                            None => ready.extend(self.ready_kernels(kernels)),
                        }
                    }
                }
                (part, _) => ready.extend(self.ready_kernels(part.into_kernels())),
            }
        }
        Ok(ready)
    }

    fn ready_kernels(&self, launches: Vec<Launch>) -> impl Iterator<Item = Ready> {
        launches.into_iter().map(|launch| {
            let kernel = self.kernels.of(&launch);
            let Launch { grid, threads, shared_bytes, arguments, .. } = launch;
            Ready::Kernel(ReadyLaunch { kernel, grid, threads, shared_bytes, arguments })
        })
    }

    /// The parts of a copy of these bytes between the host's address and the card's.
    fn copies(&self, direction: Direction, on_host: u64, on_card: u64, bytes: usize) -> Vec<Copy> {
        let start = (on_host - self.setting.bases[MemoryId::HOST]) as usize;
        let mut copies = Vec::new();
        for (part, buffer) in self.host.pinning().parts(start..start + bytes, direction) {
            let host = self.host.address().wrapping_add(part.start);
            let card = on_card + (part.start - start) as u64;
            let (bytes, at) = (part.len(), buffer.unwrap_or(host));
            match direction {
                Direction::ToDevice => {
                    copies.extend(buffer.map(|buffer| Copy::OnHost(HostCopy::new(host, buffer, bytes))));
                    copies.push(Copy::ToDevice { to: card, from: at, bytes });
                }
                Direction::ToHost => {
                    copies.push(Copy::ToHost { to: at, from: card, bytes });
                    copies.extend(buffer.map(|buffer| Copy::OnHost(HostCopy::new(buffer, host, bytes))));
                }
            }
        }
        copies
    }

    /// Source and destination of a copy: one on each side, of the same length.
    fn ends_of_copy(&self, step: &Step) -> Result<[(MemoryId, Region); 2], DeviceError> {
        let place_of = |id: &TensorId| (self.plan[*id].memory, self.plan[*id].region());
        if let ([from], [to]) = (&step.inputs[..], &step.outputs[..]) {
            let ends = [place_of(from), place_of(to)];
            if ends[0].0 != ends[1].0 && ends[0].1.bytes == ends[1].1.bytes {
                return Ok(ends);
            }
        }
        let problem = "a transfer has one operand and one result of its size, in two memories".to_owned();
        Err(DeviceError::BadStep { step: step.op.name().to_owned(), problem })
    }

    /// All regions that the plan assigns to a step.
    fn regions<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = (MemoryId, Region)> + 'a {
        let tensors = step.inputs.iter().chain(&step.outputs);
        let scratch = step.scratch.map(|region| (step.memory, region));
        let scalars = self.plan.scalars.map(|region| (MemoryId::DEVICE, region));
        tensors.map(|&id| (self.plan[id].memory, self.plan[id].region())).chain(scratch).chain(scalars)
    }

    fn ends_of_regions(&self, step: &Step) -> PerMemory<u64> {
        let mut ends = self.untouched();
        for (memory, region) in self.regions(step).filter(|(memory, _)| *memory != MemoryId::DEVICE) {
            ends[memory] = region.end().max(ends[memory]);
        }
        ends
    }

    /// The end of the highest region of the device that any argument points to.
    fn end_of_arguments(&self, step: &Step, parts: &[Ready]) -> u64 {
        let base = self.setting.bases[MemoryId::DEVICE];
        let on_device = self.regions(step).filter(|(memory, _)| *memory == MemoryId::DEVICE);
        let regions = on_device.map(|(_, region)| region).collect::<Vec<_>>();
        let ends = parts.iter().flat_map(Ready::addresses).filter_map(|address| {
            let offset = address.checked_sub(base)?;
            regions.iter().filter(|region| (region.offset..region.end()).contains(&offset)).map(|r| r.end()).max()
        });
        ends.max().unwrap_or(0)
    }

    /// The accesses that a step may make.
    fn allowed(&self, step: &Step, queue: Queue) -> Vec<Allowed> {
        let place_of = |id: TensorId| (self.plan[id].memory, self.plan[id].region());
        let mut uses = BTreeMap::<(MemoryId, u64, u64), Use>::new();
        let key = |(memory, region): (MemoryId, Region)| (memory, region.offset, region.bytes);
        for (index, &output) in step.outputs.iter().enumerate() {
            let mode = if step.op.access(index) == Access::ReadWrite { Use::Update } else { Use::Write };
            uses.insert(key(place_of(output)), mode);
        }
        if let Some(region) = step.scratch {
            uses.insert(key((step.memory, region)), Use::Scratch);
        }
        let scalars = self.plan.scalars.filter(|_| queue == Queue::Device).map(|region| (MemoryId::DEVICE, region));
        for read in step.inputs.iter().map(|&id| place_of(id)).chain(scalars) {
            // Bytes that are read and written are updated in place.
            uses.entry(key(read)).and_modify(|mode| *mode = Use::Update).or_insert(Use::Read);
        }
        let address = |memory: MemoryId, offset| self.setting.bases[memory] + offset;
        let allowed = uses.into_iter().filter(|((_, _, bytes), _)| *bytes > 0);
        allowed
            .map(|((memory, offset, bytes), mode)| Allowed { address: address(memory, offset), bytes, mode })
            .collect()
    }
}

/// One for each queue.
#[derive(Debug)]
pub(super) struct Streams(pub(super) [Option<Stream>; 4]);

impl Streams {
    /// The stream of a queue that the plan uses.
    pub(super) fn of(&self, queue: Queue) -> &Stream {
        self.0[queue as usize].as_ref().expect("a stream for each queue that the plan uses")
    }

    /// The device's stream.
    pub(super) fn device(&self) -> &Stream {
        self.of(Queue::Device)
    }
}

/// Enqueues work on streams.
pub(super) struct Enqueuer<'a> {
    pub(super) streams: &'a Streams,
    pub(super) events: &'a [Event],
    pub(super) hooks: &'a Hooks,
    /// Whether copies are asynchronous.
    pub(super) asynchronous: bool,
}

impl Enqueuer<'_> {
    /// Starts a program.
    ///
    /// # Safety
    /// It was prepared for arenas and kernels that exist until the streams are done.
    pub(super) unsafe fn program(&self, program: &ReadyProgram) -> Result<(), DeviceError> {
        let device = self.streams.device();
        if !program.others.is_empty() {
            device.record(&self.events[BEGIN])?;
        }
        for &queue in &program.others {
            self.streams.of(queue).wait(&self.events[BEGIN])?;
        }
        for job in &program.jobs {
            // SAFETY: the caller's promise.
            unsafe { self.job(job) }?;
        }
        for &queue in &program.others {
            let end = &self.events[ENDS + queue as usize];
            self.streams.of(queue).record(end)?;
            device.wait(end)?;
        }
        Ok(())
    }

    /// Starts a step.
    ///
    /// # Safety
    /// As for programs.
    pub(super) unsafe fn job(&self, job: &Job) -> Result<(), DeviceError> {
        let stream = self.streams.of(job.queue);
        for &wait in &job.waits {
            stream.wait(&self.events[wait])?;
        }
        self.allow(&job.allowed)?;
        match &job.work {
            // SAFETY: the caller guarantees that all addresses are in the arenas.
            Work::Parts(parts) => parts.iter().try_for_each(|part| unsafe { stream.start(part) })?,
            // SAFETY: the caller's promise.
            Work::Copies(copies) => copies.iter().try_for_each(|copy| unsafe { self.copy(stream, copy) })?,
            Work::Host(call) => {
                let argument = std::ptr::from_ref::<HostCall>(call).cast_mut().cast::<c_void>();
                // SAFETY: the call is in its own box, which lives as long as the program; it catches panics, and the
                // processor's kernels do not call the driver.
                unsafe { stream.call_host(run_host_call, argument) }?;
            }
        }
        job.records.map_or(Ok(()), |event| Ok(stream.record(&self.events[event])?))
    }

    /// Starts a part of a copy on its stream.
    ///
    /// # Safety
    /// As for programs.
    unsafe fn copy(&self, stream: &Stream, copy: &Copy) -> Result<(), DeviceError> {
        match copy {
            &Copy::ToDevice { to, from, bytes } => {
                if !self.asynchronous {
                    // Pageable memory is read when the copy is enqueued, not when the stream reaches it.
                    stream.synchronize()?;
                }
                // SAFETY: both are in the arenas or a buffer, which exist until the streams are done, and the plan's waits and
                // the stream's order are those of writes to them; pageable bytes are valid, since all earlier work is done.
                unsafe { stream.copy_to_card(to, from, bytes) }?;
            }
            // SAFETY: both are in the arenas or a buffer, which exist until the streams are done; the plan's waits and the
            // stream's order are those of other accesses to them.
            &Copy::ToHost { to, from, bytes } => unsafe { stream.copy_to_host(to, from, bytes) }?,
            Copy::OnHost(copy) => {
                let argument = std::ptr::from_ref::<HostCopy>(copy).cast_mut().cast::<c_void>();
                // SAFETY: the copy is in its own box, which lives as long as the program; it has bytes of the arena and of its
                // stream's buffer, as above.
                unsafe { stream.call_host(run_host_copy, argument) }?;
            }
        }
        Ok(())
    }

    /// Reports the accesses of the following operations to the stand-in's hooks. Errors: `BadStep`.
    pub(super) fn allow(&self, allowed: &[Allowed]) -> Result<(), DeviceError> {
        self.hooks.allow(allowed).map_err(|region| {
            let problem = format!("{region:?} overlaps a region with another access");
            DeviceError::BadStep { step: "what a step may touch".to_owned(), problem }
        })
    }
}
