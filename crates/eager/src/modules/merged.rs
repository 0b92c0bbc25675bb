//! PEFT's LoRA on a parameter that is not the weight of a linear layer: the experts of a layer, and their router. The
//! parameter plus the product of both matrices is a whole weight, which the module uses in place of the parameter.
//! Source: `ParamWrapper` of `peft/tuners/lora/layer.py`, PyTorch's `nn/utils/parametrize.py`.

use super::loader::Loader;
use crate::ops;
use crate::runtime::{DType, Tensor};

/// A parameter with its adapter, if it has one.
pub(super) struct Merged {
    parameter: Tensor,
    adapter: Option<Matrices>,
}

/// The two matrices of all experts together, in single precision.
struct Matrices {
    /// Shape (E * rank, inputs).
    a: Tensor,
    /// Shape (outputs, E * rank).
    b: Tensor,
}

/// What is added to the parameter, from the start of the module's pass to its end.
enum Addition {
    /// The factors of each expert: (E, rows, rank), (E, rank, columns).
    Factors([Tensor; 2]),
    /// One matrix.
    Whole(Tensor),
}

/// A parameter during a module's pass.
pub(super) struct Active<'a> {
    parameter: &'a Tensor,
    addition: Option<Addition>,
}

impl Merged {
    /// Without an adapter.
    pub fn new(parameter: Tensor) -> Self {
        Self { parameter, adapter: None }
    }

    /// Adds an adapter of this rank. `inputs` and `outputs`: those of the layer whose weight the parameter is.
    pub fn adapt(&mut self, loader: &Loader, name: &str, rank: u64, [inputs, outputs]: [u64; 2]) {
        let experts = if self.parameter.dim() == 3 { self.parameter.size(0) } else { 1 };
        let matrix = |part: &str, shape: [u64; 2]| {
            loader.learned(loader.weight(&format!("{name}.{part}.weight"), &shape, DType::F32))
        };
        let a = matrix("lora_A", [experts * rank, inputs]);
        let b = matrix("lora_B", [outputs, experts * rank]);
        self.adapter = Some(Matrices { a, b });
    }

    /// Begins the module's pass: computes the addition, and once the sum, which PyTorch discards after it has checked
    /// its shape.
    pub fn activate(&self) -> Active<'_> {
        let addition = self.adapter.as_ref().map(|matrices| matrices.addition(&self.parameter));
        let active = Active { parameter: &self.parameter, addition };
        active.addition.as_ref().map(|_| active.weight());
        active
    }
}

impl Matrices {
    fn addition(&self, parameter: &Tensor) -> Addition {
        let dtype = parameter.dtype();
        if parameter.dim() == 2 {
            // Linear layers' `get_delta_weight`.
            let mut product = self.b.mm(&self.a);
            product = product.scale();
            return Addition::Whole(product.to(dtype));
        }
        let experts = parameter.size(0);
        let rank = self.a.size(0) / experts;
        let of_a = self.a.reshape(&[experts, rank, self.a.size(1)]);
        let of_b = self.b.reshape(&[self.b.size(0), rank, experts]).transpose(0, 2).transpose(1, 2);
        // Weights are stored as (E, outputs, inputs) or, in some families, as (E, inputs, outputs).
        let factors = match parameter.size(2) == self.a.size(1) {
            true => [of_b, of_a],
            false => [of_a.transpose(1, 2), of_b.transpose(1, 2)],
        };
        Addition::Factors(factors.map(|factor| factor.to(dtype)))
    }
}

impl Active<'_> {
    /// The parameter plus the addition. A module uses it once in a pass.
    pub fn weight(&self) -> Tensor {
        match &self.addition {
            None => self.parameter.clone(),
            Some(Addition::Whole(matrix)) => self.parameter.add(matrix),
            Some(Addition::Factors([left, right])) => ops::baddbmm(self.parameter, left, right),
        }
    }
}
