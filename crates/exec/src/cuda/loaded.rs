//! Everything that a loaded plan needs on a card, reserved once: kernels, both arenas, streams, events, and the
//! programs, prepared or captured.

use super::context::Context;
use super::cublas_lt::{Algorithms, Handle, ProductChoices, ReadyProduct, Timer};
use super::error::{CallError, CudaError};
use super::hooks::{Allowed, Use};
use super::host::HostSide;
use super::kernels::{CompileNotice, Kernels};
use super::launch::Part;
use super::launch_limit::LaunchLimit;
use super::memory::CardMemory;
use super::ops::refusal;
use super::options::CudaOptions;
use super::program::{Enqueuer, Job, Preparation, ReadyProgram, Setting, Streams, events_of, io_of};
use super::staging::Staging;
use super::streams::{CapturedProgram, Event, Stream};
use crate::DeviceError;
use crate::arena::Supply;
use plimsoll_graph::{MemoryId, PerMemory, Storage};
use plimsoll_plan::{Plan, Queue};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Reads how much memory this process uses on the card with this UUID. `None` if the system does not report it.
pub type OwnMemory = fn(&str) -> Option<Bytes>;

/// The measured memory of a reservation of `reserved` bytes on a card: the difference of this process's use before and
/// after, else that of all processes, `of_all`, if it equals the reservation. `None` if it differs, since it includes another
/// process's memory.
fn taken(own: [Option<Bytes>; 2], of_all: i64, reserved: i64) -> Option<i64> {
    match own {
        [Some(before), Some(after)] => Some(difference([before.0, after.0])),
        _ => Some(of_all).filter(|used| *used == reserved),
    }
}

/// How a device loads its plans.
#[derive(Clone)]
pub(super) struct LoadSettings {
    pub(super) options: CudaOptions,
    pub(super) own_memory: Option<OwnMemory>,
    /// The limit of launches, if the system has one.
    pub(super) limit: Option<Arc<LaunchLimit>>,
    pub(super) compile_notice: Option<CompileNotice>,
}

/// An arena on a card.
pub(super) struct CardArena {
    pub(super) memory: CardMemory,
    /// Its memory, measured. `None` if it can't be separated from other processes' memory.
    pub(super) taken_bytes: Option<u64>,
}

impl CardArena {
    /// The arena of a plan. Errors: `NoRoom`, and the driver's.
    fn take(context: &Arc<Context>, plan: &Plan, own_memory: Option<OwnMemory>) -> Result<Self, DeviceError> {
        let mut arena = Self { memory: CardMemory::empty(context), taken_bytes: Some(0) };
        arena.change(context, plan, own_memory, |memory| {
            *memory = CardMemory::take(context, plan.peak().0)?;
            Ok(())
        })?;
        Ok(arena)
    }

    /// Gives it the size of another plan's. Errors: `NoRoom`, and the driver's.
    pub(super) fn resize(
        &mut self,
        context: &Arc<Context>,
        plan: &Plan,
        own_memory: Option<OwnMemory>,
    ) -> Result<(), DeviceError> {
        self.change(context, plan, own_memory, |memory| memory.resize(plan.peak().0))
    }

    /// Changes its memory, and measures that.
    fn change(
        &mut self,
        context: &Arc<Context>,
        plan: &Plan,
        own_memory: Option<OwnMemory>,
        change: impl FnOnce(&mut CardMemory) -> Result<(), CallError>,
    ) -> Result<(), DeviceError> {
        let own = || own_memory.and_then(|own_memory| own_memory(&context.card().uuid));
        let (before, own_before, reserved) = (context.room()?, own(), self.memory.reserved_bytes());
        if before.free.0 + reserved < plan.peak().0 {
            return Err(no_room_on(context, plan, Some(before.free), "it is not free".to_owned()));
        }
        change(&mut self.memory).map_err(|error| explained(error.into(), context, plan))?;
        let (after, own_after) = (context.room()?, own());
        let of_all = difference([before.free.0, after.free.0].map(|free| before.total.0.saturating_sub(free)));
        let change = taken([own_before, own_after], of_all, self.memory.reserved_bytes() as i64 - reserved as i64);
        self.taken_bytes = self.taken_bytes.zip(change).map(|(taken, change)| taken.saturating_add_signed(change));
        Ok(())
    }
}

/// The second value less the first.
fn difference([before, after]: [u64; 2]) -> i64 {
    after as i64 - before as i64
}

/// A loaded plan. Fields are dropped in this order, each before the ones that it uses.
pub(super) struct Loaded {
    captured: Vec<Option<CapturedProgram>>,
    programs: Vec<ReadyProgram>,
    /// `None` if the host's memory could not be pinned for it.
    pub(super) staging: Option<Staging>,
    events: Vec<Event>,
    streams: Streams,
    pub(super) host: Arc<HostSide>,
    pub(super) arena: CardArena,
    kernels: Kernels,
    /// The library's algorithms, if one is used.
    algorithms: Option<Algorithms>,
    context: Arc<Context>,
    setting: Setting,
    pub(super) notes: Vec<String>,
}

impl Loaded {
    /// Loads a plan; the library, if there is one, computes its products with the kept algorithms. The arena is the `kept` one
    /// if there is one, whose persistent tensors keep their contents, else a new one. Errors: `NoRoom`, and failures of the
    /// driver or the library; a kept arena stays in `kept`, and nothing else stays reserved.
    pub(super) fn new(
        context: &Arc<Context>,
        library: Option<(&Arc<Handle>, Option<&ProductChoices>)>,
        plan: &Plan,
        settings: &LoadSettings,
        supply: &mut Supply,
        kept: &mut Option<CardArena>,
    ) -> Result<Self, DeviceError> {
        if let Some(further) = plan.memories.ids().find(|&id| id > MemoryId::HOST) {
            let problem = format!("a GPU and its host have no memory `{further}`");
            return Err(DeviceError::BadStep { step: "load".to_owned(), problem });
        }
        context.enter().map_err(CudaError::from)?;
        let no_room = |error: DeviceError| explained(error, context, plan);
        let mut algorithms = library.map(|(handle, kept)| {
            let workspace = plan.targets.device.product_workspace();
            Algorithms::new(handle, settings.options.tf32, workspace.0, kept)
        });
        let kernels =
            kernels_of(context, plan, settings, algorithms.as_mut()).map_err(|error| no_room(error.into()))?;
        let is_new = kept.is_none();
        let arena = match kept.take() {
            Some(arena) => arena,
            None => CardArena::take(context, plan, settings.own_memory)?,
        };
        let mut notes = Vec::new();
        let in_process = plan.memories.map(|id, planned| if id == MemoryId::DEVICE { 0 } else { planned.peak_bytes });
        let reserved = supply.reserve(&in_process).and_then(|arenas| HostSide::new(context, plan, arenas));
        let (host, refused) = match reserved {
            Ok(host) => host,
            Err(error) => {
                *kept = Some(arena).filter(|_| !is_new);
                return Err(error);
            }
        };
        if let Some(refused) = refused {
            let (pinned, all) = (Bytes(host.pinning().pinned_bytes()), Bytes(host.bytes()));
            notes.push(match host.pinning().is_asynchronous() {
                true => format!(
                    "the driver pins {pinned} of the {all} of host memory that copies use; copies of the rest are slower: {refused}"
                ),
                false => {
                    format!("the host's memory could not be pinned, so copies and kernels don't overlap: {refused}")
                }
            });
            fail_on_fault(refused)?;
        }
        let host = Arc::new(host);
        let setting = Setting {
            bases: PerMemory::of_device_and_host(arena.memory.address(), host.address() as u64),
            compute_capability: context.card().compute_capability,
            tf32: settings.options.tf32,
            limit: settings.limit.clone(),
        };
        let mut loaded = Self {
            captured: Vec::new(),
            programs: Vec::new(),
            staging: None,
            events: Vec::new(),
            streams: Streams([const { None }; 4]),
            host,
            arena,
            kernels,
            algorithms,
            context: context.clone(),
            setting,
            notes,
        };
        match loaded.get_ready(plan, settings, is_new) {
            Ok(()) => {
                let of_products = loaded.algorithms.as_ref().map_or_else(Vec::new, Algorithms::notes);
                loaded.notes.splice(..0, of_products);
                Ok(loaded)
            }
            Err(error) => {
                *kept = Some(loaded.take_arena()).filter(|_| !is_new);
                Err(no_room(error))
            }
        }
    }

    fn get_ready(&mut self, plan: &Plan, settings: &LoadSettings, is_new: bool) -> Result<(), DeviceError> {
        self.make_streams(plan)?;
        self.prepare(plan)?;
        while !self.try_products(plan, settings.options.autotune, is_new)? {
            self.programs.clear();
            self.kernels = kernels_of(&self.context, plan, settings, self.algorithms.as_mut())?;
            self.prepare(plan)?;
        }
        if settings.options.graphs {
            self.capture()?;
        }
        if is_new { self.clear(plan) } else { Ok(()) }
    }

    /// The arena, after which nothing else can be done with this.
    pub(super) fn take_arena(&mut self) -> CardArena {
        std::mem::replace(&mut self.arena, CardArena { memory: CardMemory::empty(&self.context), taken_bytes: None })
    }

    fn make_streams(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let steps = plan.programs.iter().flat_map(|program| &program.steps);
        let mut queues = steps.map(|step| plan.queue(step)).collect::<BTreeSet<_>>();
        queues.insert(Queue::Device);
        for queue in queues {
            self.streams.0[queue as usize] = Some(Stream::new(&self.context)?);
        }
        for _ in 0..events_of(plan) {
            self.events.push(Event::new(&self.context)?);
        }
        match Staging::new(&self.context) {
            Ok(staging) => self.staging = Some(staging),
            Err(refused) => {
                let note = format!("no memory could be pinned, so each input is copied synchronously: {refused}");
                self.notes.push(note);
                fail_on_fault(refused)?;
            }
        }
        Ok(())
    }

    /// Prepares steps for these arenas.
    pub(super) fn preparation<'a>(&'a self, plan: &'a Plan) -> Preparation<'a> {
        Preparation {
            plan,
            setting: self.setting.clone(),
            kernels: &self.kernels,
            algorithms: self.algorithms.as_ref(),
            host: &self.host,
        }
    }

    fn prepare(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let preparation = self.preparation(plan);
        let programs = (0..plan.programs.len()).map(|index| preparation.program(index));
        self.programs = programs.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Runs a product of zeros for each of the library's shapes: the library loads kernels at their first use, and
    /// their memory must be allocated before the first step. If requested, times each algorithm and chooses the
    /// fastest. In an arena that is not new, the operands are what is there, and the results are gradients or transient.
    /// Returns whether all products can run: algorithms that can't are excluded, which may leave products to kernels that are
    /// not loaded.
    fn try_products(&mut self, plan: &Plan, tunes: bool, is_new: bool) -> Result<bool, DeviceError> {
        let mut tried = Vec::<&ReadyProduct>::new();
        for product in self.programs.iter().flat_map(ReadyProgram::products) {
            if !tried.iter().any(|other| other.is_alike(product)) {
                tried.push(product);
            }
        }
        if tried.is_empty() {
            return Ok(true);
        }
        self.context.count_request();
        let (address, bytes) = (self.arena.memory.address(), self.arena.memory.bytes());
        self.allow(address, bytes, Use::Scratch)?;
        if is_new {
            // SAFETY: these bytes are the arena, which exists until the stream is done.
            unsafe { self.device().clear(address, bytes) }?;
        }
        let (stream, mut can_run) = (self.streams.device(), true);
        let algorithms = self.algorithms.as_mut().expect("a library has the products");
        if !tunes {
            for product in tried {
                // SAFETY: the programs were prepared for these arenas.
                if !unsafe { stream.try_product(product) }? {
                    algorithms.exclude(product);
                    can_run = false;
                }
            }
            stream.synchronize()?;
            return Ok(can_run);
        }
        let timer = Timer::new(&self.context, stream)?;
        for product in tried {
            let candidates = algorithms.candidates(product).map_err(CudaError::from)?;
            // SAFETY: as above.
            let (fastest, failed) = unsafe { timer.fastest(candidates) }?;
            failed.iter().for_each(|product| algorithms.exclude(product));
            match fastest {
                Some(fastest) => algorithms.prefer(&fastest),
                None => can_run = false,
            }
        }
        drop(timer);
        if can_run {
            self.prepare(plan)?;
        }
        Ok(can_run)
    }

    /// The algorithms of the library's products.
    pub(super) fn choices(&self) -> Option<ProductChoices> {
        self.algorithms.as_ref().map(Algorithms::choices)
    }

    /// Captures all programs except empty ones, and ones that copy to or from memory that is not pinned.
    fn capture(&mut self) -> Result<(), DeviceError> {
        for program in &self.programs {
            if program.is_empty() || (program.has_copies && !self.host.pinning().is_asynchronous()) {
                self.captured.push(None);
                continue;
            }
            // SAFETY: the programs were prepared for these arenas and kernels.
            let captured = self.device().capture(|| unsafe { self.enqueuer().program(program) })?;
            self.captured.push(Some(captured));
        }
        Ok(())
    }

    /// Zeroes all tensors except transient ones, which are written before they are read.
    fn clear(&self, plan: &Plan) -> Result<(), DeviceError> {
        let kept = plan.tensors.iter().filter(|tensor| tensor.storage != Storage::Transient);
        let on_device = kept.filter(|tensor| tensor.memory == MemoryId::DEVICE).map(|tensor| tensor.region().end());
        let Some(end) = on_device.chain(plan.scalars.map(|region| region.end())).max().filter(|end| *end > 0) else {
            return Ok(());
        };
        let address = self.arena.memory.address();
        self.allow(address, end, Use::Write)?;
        // SAFETY: the plan is valid, so these bytes are in the arena, which exists until the streams are done.
        unsafe { self.device().clear(address, end) }?;
        Ok(self.device().synchronize()?)
    }

    /// The stream of the device's queue.
    pub(super) fn device(&self) -> &Stream {
        self.streams.device()
    }

    fn enqueuer(&self) -> Enqueuer<'_> {
        let (hooks, asynchronous) = (self.context.driver().hooks(), self.host.pinning().is_asynchronous());
        Enqueuer { streams: &self.streams, events: &self.events, hooks, asynchronous }
    }

    /// The program of this index.
    pub(super) fn program(&self, index: usize) -> &ReadyProgram {
        &self.programs[index]
    }

    /// Starts a program.
    pub(super) fn start(&self, index: usize) -> Result<(), DeviceError> {
        match self.captured.get(index) {
            Some(Some(captured)) => Ok(self.device().launch_captured(captured)?),
            // SAFETY: the programs were prepared for these arenas and kernels.
            _ => unsafe { self.enqueuer().program(&self.programs[index]) },
        }
    }

    /// Starts a step on its queue's stream and waits for it.
    pub(super) fn run(&self, job: &Job) -> Result<(), DeviceError> {
        let enqueuer = self.enqueuer();
        // SAFETY: the job was prepared for these arenas and kernels, and exists until the stream is done.
        unsafe { enqueuer.job(job) }?;
        self.synchronize()
    }

    /// Allows the following operations to access these bytes and no others.
    pub(super) fn allow(&self, address: u64, bytes: u64, mode: Use) -> Result<(), DeviceError> {
        self.enqueuer().allow(&[Allowed { address, bytes, mode }])
    }

    /// Waits for all streams. Errors: also of work that was started before.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        // The device's stream waits for the others at a program's end; after a failed start the others may still have
        // work.
        self.streams.0.iter().flatten().try_for_each(|stream| stream.synchronize())?;
        self.host.resume_panic();
        Ok(())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let entered = self.context.enter();
        // Waits for all of them, even if one fails.
        let waited = self.streams.0.iter().flatten().map(|stream| stream.synchronize()).collect::<Vec<_>>();
        let done = waited.into_iter().chain([entered]).collect::<Result<(), _>>();
        self.context.driver().hooks().allow_everything();
        if done.is_err() {
            // The card failed. The driver may still run a node of the host, so its memory is not freed.
            std::mem::forget(std::mem::take(&mut self.programs));
            std::mem::forget(self.host.clone());
        }
    }
}

/// Possible addresses of arenas for the choice of algorithms: multiples of the driver's allocation granularity.
const ANYWHERE: u64 = 2 << 20;

/// The kernels of all steps, except products for which the library has an algorithm, which is chosen here. Neither
/// depends on the arenas' addresses.
fn kernels_of(
    context: &Arc<Context>,
    plan: &Plan,
    settings: &LoadSettings,
    mut algorithms: Option<&mut Algorithms>,
) -> Result<Kernels, CudaError> {
    let compute_capability = context.card().compute_capability;
    let setting = Setting {
        bases: plan.memories.map(|_, _| ANYWHERE),
        compute_capability,
        tf32: settings.options.tf32,
        limit: settings.limit.clone(),
    };
    let steps = plan.programs.iter().flat_map(|program| &program.steps);
    let mut launches = Vec::new();
    for step in steps.filter(|step| plan.queue(step) == Queue::Device) {
        if let Some(reason) = refusal(&step.op, &io_of(plan, step), compute_capability) {
            return Err(CudaError::NoKernel { op: step.op.name(), reason });
        }
        for part in setting.parts(plan, step) {
            match (part, &mut algorithms) {
                (Part::Product { pieces, .. }, Some(algorithms)) => {
                    for (piece, kernels) in pieces {
                        if !algorithms.choose(&piece)? {
                            launches.extend(kernels);
                        }
                    }
                }
                (part, _) => launches.extend(part.into_kernels()),
            }
        }
    }
    Kernels::load(context, &launches, settings.compile_notice)
}

/// The error for exhausted memory, in the plan's terms.
fn explained(error: DeviceError, context: &Context, plan: &Plan) -> DeviceError {
    let reason = match &error {
        DeviceError::Cuda(CudaError::Call(call) | CudaError::ModuleRefused { call, .. }) if call.is_out_of_memory() => {
            call.to_string()
        }
        DeviceError::Cuda(CudaError::CublasLt(refused)) if refused.is_out_of_memory() => refused.to_string(),
        _ => return error,
    };
    let available = context.room().ok().map(|room| room.free);
    no_room_on(context, plan, available, reason)
}

/// The card has no room for the plan's arena.
fn no_room_on(context: &Context, plan: &Plan, available: Option<Bytes>, reason: String) -> DeviceError {
    DeviceError::NoRoom { needed: plan.peak(), available, reason, card: Some(context.card().uuid.clone()) }
}

/// Optional parts that fail are skipped, unless the card failed.
fn fail_on_fault(refused: CallError) -> Result<(), DeviceError> {
    match CudaError::from(refused) {
        fault @ CudaError::CardFailed { .. } => Err(fault.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_other_processes_is_not_counted() {
        let own = |before: u64, after: u64| [before, after].map(|bytes| Some(Bytes(bytes)));
        // The process's own use, whatever all processes use.
        assert_eq!(taken(own(5, 25), 520, 20), Some(20));
        assert_eq!(taken(own(5, 29), -3, 20), Some(24));
        assert_eq!(taken(own(29, 5), 0, -20), Some(-24));
        // All processes' use: the reserved bytes, more, less.
        for (of_all, known) in [(20, Some(20)), (520, None), (8, None), (-3, None)] {
            assert_eq!(taken([None, Some(Bytes(25))], of_all, 20), known, "{of_all:?}");
        }
    }
}
