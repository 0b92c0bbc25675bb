//! Runs a plan's programs on a device.

use crate::{Device, DeviceError};
use plimsoll_graph::{ProgramName, Scalars};
use plimsoll_plan::Plan;
use std::time::{Duration, Instant};

/// Runs a program of the plan and waits for its end. Panics if the plan has no program of that name.
pub fn run_program(
    device: &mut dyn Device,
    plan: &Plan,
    program: impl Into<ProgramName>,
    scalars: &Scalars,
) -> Result<(), DeviceError> {
    device.run_program(plan, index_of(plan, program.into()), scalars)?;
    device.synchronize()
}

/// Like [`run_program`], and calls `observe` with each step's index and time. Waits after every step, so that the time is
/// the step's own.
pub fn run_program_timed(
    device: &mut dyn Device,
    plan: &Plan,
    program: impl Into<ProgramName>,
    scalars: &Scalars,
    observe: &mut dyn FnMut(usize, Duration),
) -> Result<(), DeviceError> {
    let index = index_of(plan, program.into());
    device.begin(plan, index);
    for (number, step) in plan.programs[index].steps.iter().enumerate() {
        let start = Instant::now();
        device.run(plan, step, scalars)?;
        device.synchronize()?;
        observe(number, start.elapsed());
    }
    Ok(())
}

fn index_of(plan: &Plan, program: ProgramName) -> usize {
    let index = plan.programs.iter().position(|p| p.name == program);
    index.unwrap_or_else(|| panic!("the plan has no program `{program}`"))
}
