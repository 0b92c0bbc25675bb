//! Reference of `ops/embedding.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{Embedding, EmbeddingGrad};

impl Reference for Embedding {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (tokens, table, c) = (call.i(0), call.f(1), call.io.inputs[1].columns());
        for (row, &token) in tokens.iter().enumerate() {
            outputs[0][row * c..(row + 1) * c].copy_from_slice(&table[token as usize * c..(token as usize + 1) * c]);
        }
    }
}

impl Reference for EmbeddingGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, tokens, c) = (call.f(0), call.i(1), call.io.inputs[0].columns());
        start(self.accumulate, &mut outputs[0]);
        for (row, &token) in tokens.iter().enumerate() {
            for k in 0..c {
                outputs[0][token as usize * c + k] += dy[row * c + k];
            }
        }
    }
}
