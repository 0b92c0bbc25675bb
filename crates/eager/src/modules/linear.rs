//! Linear layers: whole or in 4 bits, with or without LoRA.
//! Source: PyTorch's `nn.Linear`, transformers' `Conv1D`, bitsandbytes' `nn/modules.py` (`Linear4bit`).

use super::adapter::Adapter;
use super::loader::Loader;
use crate::ops::{self, Packed};
use crate::runtime::{DType, Rt, Tensor};
use crate::usage::Kind;
use std::cell::RefCell;
use std::rc::Rc;

/// A linear layer.
pub(crate) struct Linear {
    base: Base,
    adapter: Option<Adapter>,
}

enum Base {
    /// Weight of shape (outputs, inputs).
    Linear { weight: Tensor, bias: Option<Tensor> },
    /// Weight of shape (inputs, outputs).
    Conv1d { weight: Tensor, bias: Tensor },
    /// Weight in 4 bits. The first forward pass casts the bias to the compute type.
    Linear4bit { weight: Rc<Packed>, bias: Option<RefCell<Tensor>>, compute: DType },
}

impl Linear {
    /// Loads a layer, in 4 bits if the run quantizes weights.
    pub fn load(loader: &Loader, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        match loader.quantized() {
            None => Self::load_whole(loader, name, inputs, outputs, bias),
            Some(_) => Self::load_packed(loader, name, inputs, outputs, bias),
        }
    }

    /// Loads a layer that is never in 4 bits.
    pub fn load_whole(loader: &Loader, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        let weight = loader.parameter(&format!("{name}.weight"), &[outputs, inputs]);
        let bias = bias.then(|| loader.parameter(&format!("{name}.bias"), &[outputs]));
        Self::with_adapter(loader, name, Base::Linear { weight, bias }, [inputs, outputs], false)
    }

    /// Loads a `Conv1D`, which bitsandbytes replaces with its linear layer.
    pub fn load_conv1d(loader: &Loader, name: &str, inputs: u64, outputs: u64) -> Self {
        if loader.quantized().is_some() {
            return Self::load_packed(loader, name, inputs, outputs, true);
        }
        let weight = loader.parameter(&format!("{name}.weight"), &[inputs, outputs]);
        let bias = loader.parameter(&format!("{name}.bias"), &[outputs]);
        Self::with_adapter(loader, name, Base::Conv1d { weight, bias }, [inputs, outputs], false)
    }

    /// The output head with a weight of shape (vocabulary, channels).
    pub fn head(loader: &Loader, weight: Tensor) -> Self {
        let [outputs, inputs] = [weight.size(0), weight.size(1)];
        Self::with_adapter(loader, "lm_head", Base::Linear { weight, bias: None }, [inputs, outputs], true)
    }

    fn load_packed(loader: &Loader, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        let weight = Rc::new(super::four_bit::load(loader, name, [outputs, inputs]));
        let bias = bias.then(|| RefCell::new(loader.parameter(&format!("{name}.bias"), &[outputs])));
        let base = Base::Linear4bit { weight, bias, compute: loader.compute };
        Self::with_adapter(loader, name, base, [inputs, outputs], false)
    }

    fn with_adapter(loader: &Loader, name: &str, base: Base, sizes: [u64; 2], is_head: bool) -> Self {
        let adapter = loader.added_to(name, is_head).map(|lora| Adapter::load(loader, lora, name, sizes));
        Self { base, adapter }
    }

    /// The weight's element type; `None` for 4 bits.
    pub fn dtype(&self) -> Option<DType> {
        match &self.base {
            Base::Linear { weight, .. } | Base::Conv1d { weight, .. } => Some(weight.dtype()),
            Base::Linear4bit { .. } => None,
        }
    }

    /// The stored weight. Panics for a layer in 4 bits, whose weight is never used whole.
    pub fn weight(&self) -> &Tensor {
        match &self.base {
            Base::Linear { weight, .. } | Base::Conv1d { weight, .. } => weight,
            Base::Linear4bit { .. } => unreachable!("heads are not in 4 bits"),
        }
    }

    /// (…, inputs) -> (…, outputs).
    pub fn forward(&self, rt: &Rt, name: &str, x: &Tensor) -> Tensor {
        rt.module(name, || {
            let result = self.forward_base(x);
            match (&self.adapter, &self.base) {
                (None, _) => result,
                (Some(adapter), Base::Linear4bit { .. }) => adapter.add_to_four_bit(rt, result, x),
                (Some(adapter), _) => adapter.add(rt, result, x),
            }
        })
    }

    fn forward_base(&self, x: &Tensor) -> Tensor {
        match &self.base {
            Base::Linear { weight, bias } => x.linear(weight, bias.as_ref()),
            Base::Conv1d { weight, bias } => {
                let (rows, inputs) = (x.elements() / x.size(-1), x.size(-1));
                let out = ops::addmm(bias, &x.view(&[rows, inputs]), weight);
                let mut shape = x.shape().to_vec();
                let last = shape.len() - 1;
                shape[last] = bias.size(0);
                out.view(&shape)
            }
            Base::Linear4bit { weight, bias, compute } => {
                let dtype = x.dtype();
                let x = x.to(*compute);
                let bias = bias.as_ref().map(|bias| {
                    let cast = ops::cast_values(&bias.borrow(), *compute);
                    cast.mark(Kind::Weight);
                    bias.replace(cast.clone());
                    cast
                });
                ops::matmul_4bit(&x, weight, bias.as_ref()).to(dtype)
            }
        }
    }
}
