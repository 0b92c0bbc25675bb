//! Launches of what ends a step: `grad_norm.cu`, `parameter_update.cu`, `moving_average.cu`.

use super::shape::{THREADS, blocks, launch, many, named};
use crate::cuda::launch::{Arguments, Launch, Operands};
use crate::quantise::Levels;
use plimsoll_graph::ops::{
    GradClip, MovingAverage, NORM_BLOCK, Operation, ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat,
};
use plimsoll_graph::optimizers::Rule;

/// The squares of each operand by blocks, and their sum to the total, which lies behind the blocks of the largest.
pub(super) fn grad_norm(operands: &Operands) -> Vec<Launch> {
    let counts = operands.io.inputs.iter().map(|ty| ty.elements().div_ceil(NORM_BLOCK)).collect::<Vec<_>>();
    let (sums, last) = (operands.scratch.address, counts.len() - 1);
    let total = sums + 8 * counts.iter().max().copied().unwrap_or(0) as u64;
    let of_operand = |(index, (&gradient, ty)): (usize, (&u64, &&plimsoll_graph::TensorType))| {
        let squares = Arguments::default().addresses(&[gradient, sums]).long(ty.elements() as u64).int(NORM_BLOCK);
        let join = Arguments::default()
            .addresses(&[sums, total, operands.outputs[0]])
            .int(counts[index])
            .flag(index == 0)
            .flag(index == last);
        [
            launch("grad_norm", "grad_norm_squares", many(counts[index]), squares),
            launch("grad_norm", "grad_norm_join", many(1), join),
        ]
    };
    operands.inputs.iter().zip(&operands.io.inputs).enumerate().flat_map(of_operand).collect()
}

pub(super) fn grad_clip(op: &GradClip, operands: &Operands) -> Vec<Launch> {
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
        .float(op.max_norm.unwrap_or(-1.0));
    vec![Launch { threads: 1, ..launch("grad_norm", "grad_clip", many(1), arguments) }]
}

pub(super) fn moving_average(op: &MovingAverage, operands: &Operands) -> Vec<Launch> {
    let (weight, average) = (operands.io.inputs[0], operands.io.outputs[0]);
    let arguments = Arguments::default()
        .addresses(&operands.inputs)
        .addresses(&operands.outputs)
        .long(average.elements() as u64)
        .float(op.decay);
    let has_remainder = operands.inputs.len() > 2;
    let entry = if has_remainder { "moving_average_joined".to_owned() } else { named("moving_average", weight) };
    vec![launch("moving_average", entry, blocks(average.elements(), 1), arguments)]
}

/// `enum Format` of `parameter_update.cu`.
#[derive(Clone, Copy)]
enum Format {
    Plain = 0,
    Rounded = 1,
    Codes = 2,
}

pub(super) fn parameter_update(op: &ParameterUpdate, operands: &Operands) -> Vec<Launch> {
    let elements = operands.io.inputs[0].elements();
    let moments = op.rule.moments().len();
    let (name, constants) = match &op.rule {
        Rule::AdamW(rule) => ("adamw", [rule.beta1, rule.beta2, rule.eps]),
        Rule::Lion(rule) => ("lion", [rule.beta1, rule.beta2, 0.0]),
    };
    let weight = if op.weight == WeightFormat::F32 { Format::Plain } else { Format::Rounded };
    let update = op.update().expect("an optimizer");
    let remainder = update.remainder.map_or(0, |at| operands.outputs[at]);
    let state = match op.state {
        StateFormat::F32 => Format::Plain,
        StateFormat::Bf16 => Format::Rounded,
        StateFormat::Blockwise8 => Format::Codes,
    };
    // Null where there is no such moment, or none has a scale.
    let result = |set: usize, which: usize| match which < moments {
        true => operands.outputs.get(update.state + set * moments + which).copied().unwrap_or(0),
        false => 0,
    };
    let levels = [Levels::signed(), Levels::unsigned()].map(|levels| *levels.values()).concat();
    let arguments = Arguments::default()
        .addresses(&operands.inputs)
        .addresses(&[operands.scalars, operands.outputs[update.weight], remainder])
        .addresses(&[result(0, 0), result(0, 1), result(1, 0), result(1, 1)])
        .long(elements as u64)
        .int(weight as usize)
        .int(state as usize)
        .word(op.site)
        .floats(&[constants[0], constants[1], constants[2], op.weight_decay, op.rate])
        .floats(&levels);
    // A warp for each block of state.
    let grid = many(elements.div_ceil(STATE_BLOCK * (THREADS as usize / 32)));
    vec![launch("parameter_update", name, grid, arguments)]
}
