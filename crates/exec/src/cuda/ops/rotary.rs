//! Launches of `kernels/rotary.cu`: the table of angles in scratch, then the pairs.

use super::CudaKernel;
use super::shape::{extent, launch, line, named};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::{Rotary, inverse_frequencies};

/// Frequencies per launch: `PAIRS` of `rotary.cu`.
const PAIRS: usize = 128;

impl CudaKernel for Rotary {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let (tokens, pairs) = (x.shape[1], self.rotated / 2);
        let (frequencies, factor) = inverse_frequencies(self.rotated, self.base, &self.scaling);
        let (table, scalars) = (operands.scratch.address, if self.offset { operands.scalars } else { 0 });
        let mut parts = Vec::new();
        for (part, frequencies) in frequencies.chunks(PAIRS).enumerate() {
            let count = frequencies.len();
            let mut padded = frequencies.to_vec();
            padded.resize(PAIRS, 0.0);
            let arguments = Arguments::default()
                .doubles(&padded)
                .addresses(&[scalars, table])
                .int(pairs)
                .int(part * PAIRS)
                .int(count)
                .float(factor as f32);
            let table = launch("rotary", "rotary_table", line(tokens), arguments);
            parts.push(Launch { threads: extent(PAIRS), ..table }.into());
        }
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], table, operands.outputs[0]])
            .int(tokens)
            .int(x.columns() / self.head_size);
        let (kernel, arguments) = match self.rotated == self.head_size {
            true => ("rotary", arguments),
            false => ("rotary_partial", arguments.int(self.head_size)),
        };
        let arguments = arguments.int(pairs).float(if self.inverse { -1.0 } else { 1.0 });
        parts.push(launch("rotary", named(kernel, x), line(x.rows()), arguments).into());
        parts
    }
}
