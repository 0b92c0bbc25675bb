//! Gated activations: the middle of the feed-forward layers called SwiGLU, GEGLU and ReGLU.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// A gate's activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x / (1 + e⁻ˣ), also called swish.
    Silu,
    /// x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh,
    /// x/2 · (1 + erf(x/√2)).
    Gelu,
    /// max(x, 0).
    Relu,
}

/// y = activation(gate) · up. gate, up: (.., F) -> y: (.., F); it may overwrite either. Saves gate and up.
/// Scratch: none. Errors: `ShapeMismatch` if the types differ.
/// Source: Shazeer 2020 (arXiv:2002.05202), section 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gated {
    /// The gate's activation.
    pub activation: Activation,
}

/// dgate = dy · up · activation'(gate), dup = dy · activation(gate). dy, gate, up: (.., F) -> dgate, dup: (.., F); they
/// may overwrite gate and up. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatedGrad {
    /// The gate's activation.
    pub activation: Activation,
}

/// Every activation, with the shape of its example.
const EXAMPLES: [(Activation, &[usize]); 5] = [
    (Activation::Silu, &[2, 3, 5]),
    (Activation::GeluTanh, &[1, 1, 17]),
    (Activation::Gelu, &[2, 1, 33]),
    (Activation::Relu, &[3, 7]),
    (Activation::Silu, &[4099]),
];

impl Operation for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [gate, up] = operands("gated", inputs)?;
        expect_type("gated", "up", up, gate)?;
        Ok(vec![gate.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        11 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0), cx.input(1)];
        let gradients = cx.push(GatedGrad { activation: self.activation }, &inputs)?;
        for (index, gradient) in gradients.into_iter().enumerate() {
            if cx.wants(index) {
                cx.give(index, gradient)?;
            }
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        EXAMPLES.map(|(activation, shape)| Example::uniform(Self { activation }, &[shape; 2])).to_vec()
    }
}

impl Operation for GatedGrad {
    fn name(&self) -> &'static str {
        "gated_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, gate, up] = operands("gated_grad", inputs)?;
        expect_type("gated_grad", "gate", gate, dy)?;
        expect_type("gated_grad", "up", up, dy)?;
        Ok(vec![dy.clone(); 2])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(1, 0), (2, 1)]
    }

    fn flops(&self, io: &Io) -> u64 {
        18 * io.outputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        EXAMPLES.map(|(activation, shape)| Example::uniform(Self { activation }, &[shape; 3])).to_vec()
    }
}
