//! Launches of `kernels/parameter_update.cu`.

use super::CudaKernel;
use super::shape::{THREADS, launch, line};
use crate::cuda::launch::{Arguments, Operands, Part};
use crate::quantize::Levels;
use plimsoll_graph::ops::{Operation, ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat};
use plimsoll_graph::optimizers::Rule;

/// `enum Format` of `parameter_update.cu`.
#[derive(Clone, Copy)]
enum Format {
    Plain = 0,
    Rounded = 1,
    Codes = 2,
}

impl CudaKernel for ParameterUpdate {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let elements = operands.io.inputs[0].elements();
        let moments = self.rule.moments().len();
        let (name, constants) = match &self.rule {
            Rule::AdamW(rule) => ("adamw", [rule.beta1, rule.beta2, rule.eps]),
            Rule::Lion(rule) => ("lion", [rule.beta1, rule.beta2, 0.0]),
        };
        let weight = if self.weight == WeightFormat::F32 { Format::Plain } else { Format::Rounded };
        let update = self.update().expect("an optimizer");
        let remainder = update.remainder.map_or(0, |at| operands.outputs[at]);
        let state = match self.state {
            StateFormat::F32 => Format::Plain,
            StateFormat::Bf16 => Format::Rounded,
            StateFormat::Blockwise8 => Format::Codes,
        };
        // Null if there is no such moment or scale.
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
            .word(self.site)
            .floats(&[constants[0], constants[1], constants[2], self.weight_decay, self.rate])
            .floats(&levels);
        // A warp for each block of state.
        let grid = line(elements.div_ceil(STATE_BLOCK * (THREADS as usize / 32)));
        vec![launch("parameter_update", name, grid, arguments).into()]
    }
}
