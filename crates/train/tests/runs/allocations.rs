//! A device that allocates memory after the first step is detected.

use crate::support::Setup;
use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport};
use plimsoll_graph::{ProgramKind, Scalars, TensorId};
use plimsoll_plan::{Plan, Step};
use plimsoll_train::{Engine, bench};
use std::borrow::Cow;

/// The processor; if `greedy`, it makes an extra allocation in each op.
struct Growing {
    device: CpuDevice,
    greedy: bool,
    more: u64,
}

impl Device for Growing {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.device.load(plan)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(plan, tensor, bytes)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_part(plan, tensor, offset, bytes)
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(plan, tensor, bytes)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.device.view(plan, tensor)
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        self.more += u64::from(self.greedy);
        self.device.run(plan, step, scalars)
    }

    fn memory(&self) -> MemoryReport {
        let memory = self.device.memory();
        MemoryReport { allocations: memory.allocations + self.more, ..memory }
    }
}

#[test]
fn allocations_after_the_first_step_are_reported() {
    for greedy in [false, true] {
        let setup = Setup::default();
        let (graph, plan) = setup.plan();
        let device = Growing { device: CpuDevice::new(), greedy, more: 0 };
        let mut engine = Engine::new(Box::new(device), &graph, plan).expect("a sound plan and memory for it");
        let steps = 3;
        let result = bench(&mut engine, setup.model.vocab_size(), 0, steps, 1).expect("steps");
        let count = result.measured.device_allocations_after_first_step;
        let plan = engine.plan();
        let ops = |program: ProgramKind| plan.program(program).map_or(0, |program| program.steps.len()) as u64;
        let micro_steps = ops(ProgramKind::MicroStep) + (plan.accumulation as u64 - 1) * ops(ProgramKind::MicroStepAdd);
        let expected = if greedy { (steps - 1) * (micro_steps + ops(ProgramKind::Update)) } else { 0 };
        assert_eq!(count, expected, "greedy: {greedy}");
    }
}
