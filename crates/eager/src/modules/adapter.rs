//! PEFT's LoRA on linear layers: `peft/tuners/lora/layer.py`, and `bnb.py` for layers in 4 bits.

use super::loader::Loader;
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_trainers::Lora;

/// The two matrices, in single precision for every base layer: PEFT's `autocast_adapter_dtype`.
pub(crate) struct Adapter {
    /// Shape (rank, inputs).
    a: Tensor,
    /// Shape (outputs, rank).
    b: Tensor,
    rate: f32,
}

/// A dropout rate above zero; its value does not affect memory.
const ON: f32 = 0.05;

impl Adapter {
    /// `sizes` are the layer's inputs and outputs.
    pub fn load(loader: &Loader, lora: &Lora, name: &str, sizes: [u64; 2]) -> Self {
        let [inputs, outputs] = sizes;
        let matrix = |part: &str, shape: [u64; 2]| {
            loader.learned(loader.weight(&format!("{name}.{part}.weight"), &shape, DType::F32))
        };
        let a = matrix("lora_A", [lora.rank, inputs]);
        Self { a, b: matrix("lora_B", [outputs, lora.rank]), rate: if lora.dropout { ON } else { 0.0 } }
    }

    /// The layer's result plus the adapter's, in the result's type.
    pub fn add(&self, rt: &Rt, result: Tensor, x: &Tensor) -> Tensor {
        let dtype = result.dtype();
        let x = x.to(DType::F32);
        let sum = result.add(&self.product(rt, &x));
        drop(result);
        sum.to(dtype)
    }

    /// The same for a layer in 4 bits: copies its result first, and casts the input only without autocast.
    pub fn add_to_four_bit(&self, rt: &Rt, mut result: Tensor, x: &Tensor) -> Tensor {
        let dtype = result.dtype();
        result = result.copied("clone");
        match rt.autocast().dtype() {
            Some(_) => result.add(&self.product(rt, x)),
            None => {
                let x = x.to(DType::F32);
                let product = self.product(rt, &x).to(dtype);
                result.add(&product)
            }
        }
    }

    fn product(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let dropped = rt.module("lora_dropout", || x.dropout(self.rate));
        let inner = rt.module("lora_A", || dropped.linear(&self.a, None));
        drop(dropped);
        let outer = rt.module("lora_B", || inner.linear(&self.b, None));
        drop(inner);
        outer.scale()
    }
}
