//! Every op's examples on a device, in each precision, compared with the reference.

use super::node::{PlacedNode, plan_of_nodes};
use crate::cases::{Case, Noise, PRECISIONS, Verdict, Wrong, in_precision};
use crate::{Device, DeviceError};
use plimsoll_graph::ops::Nature;
use plimsoll_graph::{Access, DType, Example, MemoryId, Op, Targets, TensorId};
use plimsoll_plan::Plan;

/// The initial bytes of a result that a kernel must overwrite: NaN as floats.
const UNWRITTEN: u8 = 0xFF;

/// An op's cases of one precision on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelCheck {
    /// The op, as [`Op::variant`] names it.
    pub op: &'static str,
    /// The precision.
    pub dtype: DType,
    /// Whether single precision is rounded to TF32 for products.
    pub tf32: bool,
    /// Number of compared cases: all of them, unless the device failed.
    pub cases: usize,
    /// The merged verdict.
    pub verdict: Verdict,
    /// The largest wrong result, or the device's failure.
    pub failure: Option<KernelFailure>,
}

/// Why a check failed.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelFailure {
    /// The op with its attributes and its operands' types; `None` if the device failed before the first case.
    pub case: Option<String>,
    /// The cause.
    pub cause: Cause,
}

/// A cause of failure.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// A result differs from the reference.
    Wrong(Wrong),
    /// The device failed.
    Device(DeviceError),
}

impl KernelCheck {
    /// A check without cases.
    fn new(op: &'static str, dtype: DType, tf32: bool) -> Self {
        Self { op, dtype, tf32, cases: 0, verdict: Verdict::default(), failure: None }
    }

    /// Whether the device can't be used any more.
    pub fn ended_the_device(&self) -> bool {
        matches!(&self.failure, Some(KernelFailure { cause: Cause::Device(error), .. }) if error.ends_the_device())
    }

    fn take(&mut self, case: &Case, verdict: Verdict) {
        if let Some(wrong) = verdict.wrong.filter(|_| verdict.worst > self.verdict.worst) {
            self.failure = Some(KernelFailure { case: Some(described(&case.example)), cause: Cause::Wrong(wrong) });
        }
        self.cases += 1;
        self.verdict = std::mem::take(&mut self.verdict).and(verdict);
    }

    fn fail(mut self, case: Option<&Case>, error: DeviceError) -> Self {
        self.failure =
            Some(KernelFailure { case: case.map(|case| described(&case.example)), cause: Cause::Device(error) });
        self
    }
}

/// Checks all ops in all precisions that they take. Stops if the device can't be used any more.
pub fn check_kernels(device: &mut dyn Device, targets: &Targets) -> Vec<KernelCheck> {
    check_examples(device, targets, &Op::all_examples(), &PRECISIONS, false)
}

/// Checks the ops that have examples among these, in each of these precisions that they take.
fn check_examples(
    device: &mut dyn Device,
    targets: &Targets,
    examples: &[Example],
    precisions: &[DType],
    tf32: bool,
) -> Vec<KernelCheck> {
    let mut checks = Vec::new();
    for &op in Op::VARIANTS {
        for &dtype in precisions {
            let is_here = |example: &&Example| !matches!(example.op, Op::Fp8Linear(_)) || targets.device.has_fp8();
            let of_op = examples.iter().filter(|example| example.op.variant() == op).filter(is_here);
            let cases = of_op.filter_map(|example| in_precision(example, dtype)).collect::<Vec<_>>();
            if cases.is_empty() {
                continue;
            }
            let check = check(device, targets, &cases, KernelCheck::new(op, dtype, tf32));
            let ended = check.ended_the_device();
            checks.push(check);
            if ended {
                return checks;
            }
        }
    }
    checks
}

/// Checks only the ops that are products: in single precision on a device that rounds their operands to TF32, else in
/// all precisions that they take. Stops if the device can't be used any more.
pub fn check_products(device: &mut dyn Device, targets: &Targets, tf32: bool) -> Vec<KernelCheck> {
    let mut examples = Op::all_examples();
    examples.retain(|example| example.op.nature() == Nature::Products);
    let precisions = if tf32 { &[DType::F32][..] } else { &PRECISIONS };
    check_examples(device, targets, &examples, precisions, tf32)
}

/// Runs all examples of an op in one plan, and fills an empty check.
fn check(device: &mut dyn Device, targets: &Targets, examples: &[Example], mut check: KernelCheck) -> KernelCheck {
    let nodes = examples.iter().flat_map(placed).collect::<Vec<_>>();
    let plan = plan_of_nodes(nodes.iter().copied(), targets);
    if let Err(error) = device.load(&plan) {
        return check.fail(None, error);
    }
    for (number, node) in nodes.iter().enumerate() {
        let case = Case::new(node.example, &mut Noise::new(number as u64));
        let case = if check.tf32 { case.in_tf32() } else { case };
        match run(device, &plan, number, &case) {
            Ok(found) => check.take(&case, case.compare(targets.device.kind(), &found, &case.reference())),
            Err(error) => return check.fail(Some(&case), error),
        }
    }
    check
}

/// The places of an example: on the device, or both directions for copies between device and host.
fn placed(example: &Example) -> Vec<PlacedNode<'_>> {
    let places = match example.op {
        Op::Transfer(_) => vec![(MemoryId::HOST, MemoryId::DEVICE), (MemoryId::DEVICE, MemoryId::HOST)],
        _ => vec![(MemoryId::DEVICE, MemoryId::DEVICE)],
    };
    places.into_iter().map(|(from, to)| PlacedNode { example, from, to }).collect()
}

/// A case's results.
fn run(device: &mut dyn Device, plan: &Plan, program: usize, case: &Case) -> Result<Vec<Vec<u8>>, DeviceError> {
    let step = &plan.programs[program].steps[0];
    for (index, &tensor) in step.inputs.iter().enumerate() {
        device.write(plan, tensor, &case.input_bytes(index))?;
    }
    for (index, &tensor) in step.outputs.iter().enumerate() {
        let before = match step.op.access(index) {
            Access::ReadWrite => case.state_bytes(index),
            Access::Write => vec![UNWRITTEN; bytes_of(plan, tensor)],
        };
        device.write(plan, tensor, &before)?;
    }
    device.run_program(plan, program, &case.example.scalars)?;
    device.synchronize()?;
    let mut read = |&tensor: &TensorId| {
        let mut bytes = vec![0; bytes_of(plan, tensor)];
        device.read(plan, tensor, &mut bytes)?;
        Ok(bytes)
    };
    step.outputs.iter().map(&mut read).collect()
}

fn bytes_of(plan: &Plan, tensor: TensorId) -> usize {
    plan[tensor].ty.bytes().0 as usize
}

/// `Add(Add) of F32 [2, 3], F32 [2, 3]`
fn described(example: &Example) -> String {
    let types = example.inputs.iter().map(|(ty, _)| format!("{:?} {:?}", ty.dtype, ty.shape)).collect::<Vec<_>>();
    format!("{:?} of {}", example.op, types.join(", "))
}
