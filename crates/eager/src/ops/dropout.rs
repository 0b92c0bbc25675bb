//! Dropout on CUDA: one kernel whose mask has one byte per element.

use crate::runtime::{DType, Op, Saved, Tensor};

impl Tensor {
    /// Dropout with this rate; `self` for a rate of zero. Saves the mask.
    pub fn dropout(&self, rate: f32) -> Self {
        if rate <= 0.0 {
            return self.clone();
        }
        let op = Op::new("native_dropout", &[self]);
        let out = self.empty_like(self.dtype(), "native_dropout");
        let mask = self.empty_like(DType::Bool, "native_dropout");
        let saved = op.save(&mask);
        drop(mask);
        op.finish_one(out, |_, gradient, _| {
            let _mask = saved.map(Saved::unpack);
            vec![Some(gradient.empty_like(gradient.dtype(), "native_dropout_backward"))]
        })
    }
}
