//! Launches of `kernels/parameter_update.cu`, each for a list of parameters: an op has one, and consecutive ops are joined.

use super::CudaKernel;
use super::shape::{THREADS, launch, line};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::quantize::Levels;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Operation, ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat};
use plimsoll_graph::optimizers::Rule;

/// `enum Format` of `parameter_update.cu`.
#[derive(Clone, Copy)]
enum Format {
    Plain = 0,
    Rounded = 1,
    Codes = 2,
}

/// Parameters of a launch: `LISTED` of `parameter_update.cu`.
const LISTED: usize = 20;

impl CudaKernel for ParameterUpdate {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        updates(&[(self, operands.clone())]).into_iter().map(Part::Kernel).collect()
    }
}

/// Whether updates may be parts of one launch, if their gradients have one factor.
pub(in crate::cuda) fn are_alike(update: &ParameterUpdate, other: &ParameterUpdate) -> bool {
    (update.rule, update.weight, update.state) == (other.rule, other.weight, other.state)
}

/// The launches of updates, which are alike and whose gradients have one factor. Panics if there are none.
pub(in crate::cuda) fn updates(updates: &[(&ParameterUpdate, Operands)]) -> Vec<Launch> {
    let (first, operands) = &updates[0];
    let (name, constants) = match &first.rule {
        Rule::AdamW(rule) => ("adamw", [rule.beta1, rule.beta2, rule.eps]),
        Rule::Lion(rule) => ("lion", [rule.beta1, rule.beta2, 0.0]),
    };
    let weight = if first.weight == WeightFormat::F32 { Format::Plain } else { Format::Rounded };
    let state = match first.state {
        StateFormat::F32 => Format::Plain,
        StateFormat::Bf16 => Format::Rounded,
        StateFormat::Blockwise8 => Format::Codes,
    };
    let levels = [Levels::signed(), Levels::unsigned()].map(|levels| *levels.values()).concat();
    let of_list = |list: &[(&ParameterUpdate, Operands)]| {
        let (record, blocks) = record(list);
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[1], operands.scalars])
            .int(weight as usize)
            .int(state as usize)
            .floats(&constants)
            .floats(&levels)
            .record(&record);
        launch("parameter_update", name, line(blocks), arguments)
    };
    updates.chunks(LISTED).map(of_list).collect()
}

/// `struct List` of `parameter_update.cu`, and the number of all blocks.
fn record(list: &[(&ParameterUpdate, Operands)]) -> (Arguments, usize) {
    let mut record = Arguments::default();
    let mut first = 0;
    for (op, operands) in list {
        let (update, moments) = (op.update().expect("an optimizer"), op.rule.moments().len());
        let elements = operands.io.inputs[0].elements();
        let gradient = if operands.io.inputs[0].dtype == DType::F32 { Format::Plain } else { Format::Rounded };
        let remainder = update.remainder.map_or(0, |at| operands.outputs[at]);
        // Null if there is no such moment or scale.
        let result = |set: usize, which: usize| match which < moments {
            true => operands.outputs.get(update.state + set * moments + which).copied().unwrap_or(0),
            false => 0,
        };
        record = record
            .addresses(&[operands.inputs[0], operands.outputs[update.weight], remainder])
            .addresses(&[result(0, 0), result(0, 1), result(1, 0), result(1, 1)])
            .long(elements as u64)
            .long(first as u64)
            .word(op.site)
            .float(op.weight_decay)
            .float(op.rate)
            .word(gradient as u32);
        // A warp for each block of state.
        first += elements.div_ceil(STATE_BLOCK * (THREADS as usize / 32));
    }
    /// Words of 8 bytes of `struct Parameter`.
    const WORDS: usize = 11;
    let absent = WORDS * (LISTED - list.len());
    ((0..absent).fold(record, |record, _| record.long(0)).long(list.len() as u64), first)
}
