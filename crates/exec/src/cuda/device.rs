//! A card as a device. `loaded.rs` is what it allocates for a plan.

use super::card::Card;
use super::context::Context;
use super::cublas_lt::{CublasLt, CublasLtError, Handle, ProductChoices};
use super::error::{CallError, CudaError};
use super::hooks::Use;
use super::host::Node;
use super::kernels::CompileNotice;
use super::launch::device_scalars;
use super::launch_limit::LaunchLimit;
use super::library::Driver;
use super::loaded::{CardArena, LoadSettings, Loaded, OwnMemory};
use super::options::CudaOptions;
use crate::arena::{FreeMemory, Supply};
use crate::{ArenaUse, Capabilities, Device, DeviceError, MemoryReport, Room};
use plimsoll_graph::{DeviceKind, MemoryId, PerMemory, Scalars, Storage, TensorId};
use plimsoll_plan::{Machine, Plan, Queue, Region, Step};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::sync::Arc;

/// An NVIDIA card. Its context is created with it, so that the memory that is free afterwards is available for a plan.
pub struct CudaDevice {
    /// Dropped before the library and the context.
    loaded: Option<Loaded>,
    library: Option<Arc<Handle>>,
    /// The algorithms of a resumed run's products.
    kept: Option<ProductChoices>,
    context: Arc<Context>,
    settings: LoadSettings,
    supply: Supply,
    arenas: PerMemory<ArenaUse>,
}

impl CudaDevice {
    /// Opens a card. The host's arena is allocated without checking the free memory. Errors: `CudaError` if the card
    /// can't be used.
    pub fn open(driver: &'static Driver, card: Card, options: CudaOptions) -> Result<Self, CudaError> {
        let context = Arc::new(Context::open(driver, card)?);
        let limit = LaunchLimit::of_card(context.card()).map(Arc::new);
        Ok(Self {
            loaded: None,
            library: None,
            kept: None,
            context,
            settings: LoadSettings { options, own_memory: None, limit, compile_notice: None },
            supply: Supply::default(),
            arenas: PerMemory::default(),
        })
    }

    /// Uses this library for products, from the next plan on that is made for it. Allocates the library's own memory on
    /// the card. Errors: it can't be used on this card.
    pub fn use_library(&mut self, library: &'static CublasLt) -> Result<(), CublasLtError> {
        self.library = Some(Arc::new(Handle::new(&self.context, library)?));
        Ok(())
    }

    /// Uses the algorithms that a resumed run stored, if library and card are the same.
    pub fn keep_products(&mut self, kept: ProductChoices) {
        self.kept = Some(kept);
    }

    /// The library that computes products, in plans that are made for it.
    pub fn library(&self) -> Option<&'static CublasLt> {
        self.library.as_ref().map(|handle| handle.library())
    }

    /// The host's arena allocates no more than is free.
    #[must_use]
    pub fn within(mut self, free: FreeMemory) -> Self {
        self.supply = Supply::of(free);
        self
    }

    /// Sets the function that reports this process's memory on the card, by which the arena's memory is measured.
    #[must_use]
    pub fn measured_by(mut self, own_memory: OwnMemory) -> Self {
        self.settings.own_memory = Some(own_memory);
        self
    }

    /// Sets the function that is called while kernels are compiled, if that takes longer than a second.
    #[must_use]
    pub fn noticing_compilation(mut self, notice: CompileNotice) -> Self {
        self.settings.compile_notice = Some(notice);
        self
    }

    /// Sets the speed of the card, off its data sheet until then. By it, launches are cut that the system would end because they
    /// take too long, in the plans that are loaded from now on.
    pub fn set_speed(&mut self, machine: &Machine) {
        if self.card().limits_kernels {
            self.settings.limit = Some(Arc::new(LaunchLimit::of(machine.clone())));
        }
    }

    /// Whether products in single precision round their operands to TF32 in the plans that are loaded from now on.
    pub fn set_tf32(&mut self, tf32: bool) {
        self.settings.options.tf32 = tf32;
    }

    /// Whether the algorithms of products are timed in the plans that are loaded from now on.
    pub fn set_autotune(&mut self, autotune: bool) {
        self.settings.options.autotune = autotune;
    }

    /// The card.
    pub fn card(&self) -> &Card {
        self.context.card()
    }

    /// Loads a plan into a kept arena, if there is one.
    fn load_into(&mut self, plan: &Plan, kept: &mut Option<CardArena>) -> Result<(), DeviceError> {
        // Plans for the built-in kernels have no workspace for a library.
        let library = self.library.as_ref().filter(|_| plan.targets.device.product_workspace() > Bytes::ZERO);
        let loaded = Loaded::new(
            &self.context,
            library.zip(Some(self.kept.as_ref())),
            plan,
            &self.settings,
            &mut self.supply,
            kept,
        )?;
        let sizes = PerMemory::of_device_and_host(loaded.arena.memory.bytes(), loaded.host.bytes());
        self.arenas = sizes.map(|_, &bytes| ArenaUse::untouched(bytes));
        self.loaded = Some(loaded);
        Ok(())
    }

    fn loaded(&self) -> &Loaded {
        self.loaded.as_ref().expect("a plan is loaded before anything runs")
    }

    fn touch(&mut self, memory: MemoryId, end: u64) {
        self.arenas[memory].touch(end);
    }

    /// Writes to a part of the device's arena, ordered after started work.
    fn send(&mut self, part: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        let loaded = self.loaded.as_mut().expect("a plan is loaded before anything is written");
        let to = loaded.arena.memory.address() + part.offset;
        let end = part.end();
        loaded.allow(to, part.bytes, Use::Write)?;
        match loaded.staging.take() {
            Some(mut staging) => {
                // SAFETY: the part is within the arena (callers check it against the tensor, and `validate` checks the
                // tensor against the arena), which exists until the streams are done.
                let sent = unsafe { staging.send(loaded.device(), to, bytes) };
                loaded.staging = Some(staging);
                sent?;
            }
            None if bytes.is_empty() => {}
            None => {
                // SAFETY: as above; the bytes are borrowed until the stream is done.
                unsafe { loaded.device().copy_to_card(to, bytes.as_ptr(), bytes.len()) }?;
                loaded.device().synchronize()?;
            }
        }
        self.touch(MemoryId::DEVICE, end);
        Ok(())
    }

    /// Copies from the arena of the device.
    fn fetch(&self, region: Region, bytes: &mut [u8]) -> Result<u64, DeviceError> {
        self.context.enter()?;
        let loaded = self.loaded();
        let from = loaded.arena.memory.address() + region.offset;
        loaded.allow(from, region.bytes, Use::Read)?;
        if !bytes.is_empty() {
            // SAFETY: the region is a tensor's of a valid plan, so it is within the arena; the bytes are borrowed until
            // the stream is done, which we wait for even if the copy fails.
            let copied = unsafe { loaded.device().copy_to_host(bytes.as_mut_ptr(), from, bytes.len()) };
            let done = loaded.synchronize();
            copied?;
            done?;
        }
        Ok(region.end())
    }

    fn send_scalars(&mut self, plan: &Plan, scalars: &Scalars) -> Result<(), DeviceError> {
        let Some(region) = plan.scalars else { return Ok(()) };
        let bytes = device_scalars(scalars);
        self.send(Region { offset: region.offset, bytes: bytes.len() as u64 }, &bytes)
    }
}

/// The bytes of a tensor. Errors: `WrongSize`.
fn checked(plan: &Plan, tensor: TensorId, found: usize) -> Result<Region, DeviceError> {
    part_of(plan, tensor, 0, found).and_then(|part| {
        let expected = plan[tensor].region().bytes;
        let tensor = plan[tensor].name.clone();
        let wrong = DeviceError::WrongSize { tensor, expected, found: found as u64 };
        if part.bytes == expected { Ok(part) } else { Err(wrong) }
    })
}

/// Bytes of a tensor from an offset on. Errors: `WrongSize` if they end after it.
fn part_of(plan: &Plan, tensor: TensorId, offset: u64, bytes: usize) -> Result<Region, DeviceError> {
    let whole = plan[tensor].region();
    let end = offset + bytes as u64;
    if end > whole.bytes {
        let tensor = plan[tensor].name.clone();
        return Err(DeviceError::WrongSize { tensor, expected: whole.bytes, found: end });
    }
    Ok(Region { offset: whole.offset + offset, bytes: bytes as u64 })
}

impl From<CallError> for DeviceError {
    fn from(error: CallError) -> Self {
        Self::Cuda(error.into())
    }
}

impl Device for CudaDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: self.card().name.clone(), kind: Some(DeviceKind::Cuda) }
    }

    fn room(&self) -> Result<Option<Room>, DeviceError> {
        Ok(Some(self.context.room()?))
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.loaded = None;
        self.arenas = PerMemory::default();
        self.load_into(plan, &mut None)
    }

    /// Whether the arena can have the other size, and nothing persistent is in the host's arena, which is a new one.
    fn can_exchange(&self, _: &Plan, next: &Plan) -> bool {
        let persistent = || next.tensors.iter().filter(|tensor| tensor.storage == Storage::Persistent);
        let kept = persistent().map(|tensor| tensor.region().end()).max().unwrap_or(0);
        persistent().all(|tensor| tensor.memory == MemoryId::DEVICE)
            && self.loaded.as_ref().is_some_and(|loaded| loaded.arena.memory.can_resize(next.peak().0, kept))
    }

    fn exchange(&mut self, loaded: &Plan, next: &Plan) -> Result<(), DeviceError> {
        self.synchronize()?;
        let mut old = self.loaded.take().expect("a plan is loaded before another one");
        if let Err(refused) = old.arena.resize(&self.context, next, self.settings.own_memory) {
            self.loaded = Some(old);
            return Err(refused);
        }
        let mut arena = Some(old.take_arena());
        // Its kernels and its host's arena leave before those of the next plan are loaded.
        drop(old);
        let Err(refused) = self.load_into(next, &mut arena) else { return Ok(()) };
        // Without the arena, the device failed.
        if let Some(kept) = &mut arena {
            kept.resize(&self.context, loaded, self.settings.own_memory)?;
            self.load_into(loaded, &mut arena)?;
        }
        Err(refused)
    }

    fn pinned_bytes(&self) -> Option<u64> {
        let host = &self.loaded.as_ref()?.host;
        Some(host.pinning().pinned_bytes()).filter(|pinned| *pinned < host.bytes())
    }

    fn notes(&self) -> Vec<String> {
        self.loaded.as_ref().map_or_else(Vec::new, |loaded| loaded.notes.clone())
    }

    fn product_choices(&self) -> Option<ProductChoices> {
        self.loaded.as_ref()?.choices()
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        checked(plan, tensor, bytes.len())?;
        self.write_part(plan, tensor, 0, bytes)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let part = part_of(plan, tensor, offset, bytes.len())?;
        if plan[tensor].memory == MemoryId::DEVICE {
            return self.send(part, bytes);
        }
        self.synchronize()?;
        // SAFETY: all streams are done, and `self` is borrowed mutably, so nothing is enqueued meanwhile.
        let runner = unsafe { self.loaded().host.at_rest_mut() };
        runner.arena_mut(plan[tensor].memory).bytes_mut(part).copy_from_slice(bytes);
        self.touch(plan[tensor].memory, part.end());
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let region = checked(plan, tensor, bytes.len())?;
        let end = match plan[tensor].memory {
            MemoryId::DEVICE => self.fetch(region, bytes)?,
            _ => {
                bytes.copy_from_slice(&self.view(plan, tensor)?);
                region.end()
            }
        };
        self.touch(plan[tensor].memory, end);
        Ok(())
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        let region = plan[tensor].region();
        if plan[tensor].memory == MemoryId::DEVICE {
            let mut bytes = vec![0; region.bytes as usize];
            self.fetch(region, &mut bytes)?;
            return Ok(Cow::Owned(bytes));
        }
        self.loaded().synchronize()?;
        // SAFETY: all streams are done, and enqueuing borrows `self` mutably, which the result excludes.
        let runner = unsafe { self.loaded().host.at_rest() };
        Ok(Cow::Borrowed(runner.arena(plan[tensor].memory).bytes(region)))
    }

    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.send_scalars(plan, scalars)?;
        let loaded = self.loaded();
        let ready = loaded.program(program);
        let touches = ready.touches.clone();
        if ready.has_nodes {
            loaded.host.push_scalars(scalars);
        }
        loaded.start(program)?;
        touches.iter().for_each(|(memory, end)| self.touch(memory, *end));
        Ok(())
    }

    /// Waits for the step's end.
    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        if plan.queue(step) == Queue::Host {
            self.synchronize()?;
            // SAFETY: all streams are done, and `self` is borrowed mutably, so nothing is enqueued meanwhile.
            unsafe { self.loaded().host.at_rest_mut() }.run(plan, step, scalars);
            return Ok(());
        }
        self.send_scalars(plan, scalars)?;
        let loaded = self.loaded();
        let job = loaded.preparation(plan).job(step, Node::Begin)?;
        // The copies are on the device's stream, the step may be on another.
        loaded.synchronize()?;
        loaded.run(&job)?;
        let touches = job.touches;
        touches.iter().for_each(|(memory, end)| self.touch(memory, *end));
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.loaded.as_ref().map_or(Ok(()), Loaded::synchronize)
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { arenas: self.arenas.clone(), allocations: self.context.requests() + self.supply.requests() }
    }

    fn resident_bytes(&self) -> Option<u64> {
        Some(self.loaded.as_ref()?.arena.taken_bytes? + self.resident_in_process_bytes()?)
    }

    fn resident_in_process_bytes(&self) -> Option<u64> {
        let loaded = self.loaded.as_ref()?;
        loaded.synchronize().ok()?;
        // SAFETY: all streams are done, and nothing is enqueued while `self` is borrowed here.
        unsafe { loaded.host.at_rest() }.resident_bytes()
    }
}
