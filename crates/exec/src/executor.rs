//! The loop that executes a plan.

use crate::{Device, DeviceError};
use graph::Scalars;
use plan::Plan;

/// Runs a program of the plan, step by step. Panics if the plan has no program of that name.
pub fn run_program(device: &mut dyn Device, plan: &Plan, program: &str, scalars: &Scalars) -> Result<(), DeviceError> {
    let index = plan.programs.iter().position(|p| p.name == program);
    let index = index.unwrap_or_else(|| panic!("the plan has no program `{program}`"));
    device.begin(plan, index);
    for step in &plan.programs[index].steps {
        device.run(plan, step, scalars)?;
    }
    device.synchronize()
}
