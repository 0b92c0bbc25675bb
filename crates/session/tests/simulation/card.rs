//! The run's card: the CPU device, whose programs take simulated time, and which fails as the schedule says.

use crate::schedule::CardFault;
use crate::world::World;
use plimsoll_exec::cuda::{CallError, CudaError};
use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport};
use plimsoll_graph::{MemoryId, ProgramKind, Scalars, TensorId};
use plimsoll_plan::{Plan, Step};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::time::Duration;

/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` and `CUDA_ERROR_UNKNOWN`: the second one means that the card is lost.
const LAUNCH: u32 = 701;
const LOST: u32 = 999;

/// A card with faults.
pub struct FaultyCard {
    pub world: World,
    pub inner: CpuDevice,
    pub is_lost: bool,
}

impl FaultyCard {
    fn failed(code: u32) -> DeviceError {
        let call = CallError { function: "cuGraphLaunch", code, name: None, words: None, detail: None };
        CudaError::from(call).into()
    }

    /// Whether the card still responds.
    fn responds(&self) -> Result<(), DeviceError> {
        if self.is_lost { Err(Self::failed(LOST)) } else { Ok(()) }
    }

    /// Whether a plan may have its memory, of which `held` is there. Errors: `NoRoom`.
    fn has_room(&self, plan: &Plan, held: Bytes) -> Result<(), DeviceError> {
        let mut state = self.world.lock();
        state.loads += 1;
        let (needed, usable) = (plan.needed()[MemoryId::DEVICE], state.usable());
        let is_short = needed > usable && needed > held;
        if !is_short && !state.schedule.loads.contains(&state.loads) {
            return Ok(());
        }
        state.facts.refused_load = true;
        drop(state);
        self.world.note(format!("a plan of {needed} is refused, {usable} is free"));
        let available = is_short.then_some(usable);
        Err(DeviceError::NoRoom { needed, available, reason: "refused".to_owned(), card: None })
    }

    /// Lets a program take its time, and checks that it may begin.
    fn begins(&self, kind: ProgramKind) {
        let mut state = self.world.lock();
        let share = match kind {
            ProgramKind::MicroStep | ProgramKind::MicroStepAdd | ProgramKind::HostUpdateAndMicroStep => 1.0,
            ProgramKind::Update | ProgramKind::HostUpdate => 0.2,
            _ => 0.5,
        };
        let seconds = share * state.schedule.micro_batch_s * state.rng.between(0.8, 1.2);
        if !matches!(kind, ProgramKind::Update | ProgramKind::HostUpdate) {
            state.facts.begun += 1;
            let is_first = matches!(kind, ProgramKind::MicroStep | ProgramKind::HostUpdateAndMicroStep);
            if let Some(problem) = crate::checks::may_not_begin(&state, is_first) {
                drop(state);
                self.world.fail(problem);
            }
        }
        drop(state);
        self.world.pass(Duration::from_secs_f64(seconds.max(1e-3)), true);
    }
}

impl Device for FaultyCard {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.has_room(plan, Bytes::ZERO)?;
        self.inner.load(plan)
    }

    fn can_exchange(&self, loaded: &Plan, next: &Plan) -> bool {
        self.world.lock().schedule.exchanges && self.inner.can_exchange(loaded, next)
    }

    fn exchange(&mut self, loaded: &Plan, next: &Plan) -> Result<(), DeviceError> {
        self.responds()?;
        self.has_room(next, loaded.needed()[MemoryId::DEVICE])?;
        self.world.note("a plan takes over the state".to_owned());
        self.inner.exchange(loaded, next)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.responds()?;
        self.inner.write(plan, tensor, bytes)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.responds()?;
        self.inner.write_part(plan, tensor, offset, bytes)
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.responds()?;
        self.inner.read(plan, tensor, bytes)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.responds()?;
        self.inner.view(plan, tensor)
    }

    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.responds()?;
        self.begins(plan.programs[program].name.kind);
        let fault = {
            let mut state = self.world.lock();
            if state.facts.card_failed {
                drop(state);
                self.world.fail("a program began after the card had failed");
            }
            state.programs += 1;
            let number = state.programs;
            state.schedule.programs.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault)
        };
        if let Some(fault) = fault {
            self.world.note(format!("{fault:?} of program {}", plan.programs[program].name));
            self.world.lock().facts.card_failed = true;
            self.is_lost = matches!(fault, CardFault::Lost);
            return Err(Self::failed(if self.is_lost { LOST } else { LAUNCH }));
        }
        self.inner.run_program(plan, program, scalars)
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        self.inner.run(plan, step, scalars)
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.responds()?;
        self.inner.synchronize()
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.inner.resident_bytes()
    }
}
